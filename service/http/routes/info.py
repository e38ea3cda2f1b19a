"""Info: the model card of the bundle that is served, and what really runs it."""

from __future__ import annotations

from fastapi import APIRouter

from service.errors import Draining, NotReady, Unauthorized
from service.http.responses.openapi import document_problems
from service.http.responses.schemas import InfoAnswer, answer_info
from service.http.routes.dependencies import Host
from service.http.security.keys import PREDICT

router = APIRouter(tags=["model"])


@router.get(
    "/info",
    dependencies=[*PREDICT],
    responses=document_problems(NotReady, Draining, Unauthorized),
)
async def info(host: Host) -> InfoAnswer:
    """Describes the model: licence, origin, input, labels with thresholds, accuracy."""
    return answer_info(host.pipeline)
