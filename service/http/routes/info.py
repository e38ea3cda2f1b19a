"""Info: the model card of the bundle that is served, and what really runs it."""

from __future__ import annotations

from fastapi import APIRouter

from service.errors import Draining, NotReady
from service.http.dependencies import Host
from service.http.openapi import document_problems
from service.http.schemas import InfoAnswer, answer_info

router = APIRouter(tags=["model"])


@router.get("/info", responses=document_problems(NotReady, Draining))
async def info(host: Host) -> InfoAnswer:
    """Describes the model: licence, origin, input, labels with thresholds, accuracy."""
    return answer_info(host.pipeline)
