"""Info: the model card of the bundle that is served, and what really runs it."""

from __future__ import annotations

from fastapi import APIRouter

from service.errors import Draining, NotReady
from service.http.dependencies import Host
from service.http.keys import PREDICT
from service.http.openapi import document_problems
from service.http.request_errors import Unauthorized
from service.http.schemas import InfoAnswer, answer_info

router = APIRouter(tags=["model"])


@router.get(
    "/info",
    dependencies=[*PREDICT],
    responses=document_problems(NotReady, Draining, Unauthorized),
)
async def info(host: Host) -> InfoAnswer:
    """Describes the model: licence, origin, input, labels with thresholds, accuracy."""
    return answer_info(host.pipeline)
