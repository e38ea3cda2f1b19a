"""Health: whether the process lives, and whether it takes requests.

In: nothing. Out: 200, or 503 while loading, failed or draining. Orchestrators restart on
`/livez` and route on `/readyz`.
"""

from __future__ import annotations

from fastapi import APIRouter

from service.errors import Draining, NotReady
from service.http.responses.openapi import document_problems
from service.http.responses.schemas import HealthAnswer
from service.http.routes.dependencies import Host

router = APIRouter(tags=["health"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def live() -> HealthAnswer:
    """Says that the process answers, ready or not."""
    return HealthAnswer(status="alive")


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=document_problems(NotReady, Draining))
async def ready(host: Host) -> HealthAnswer:
    """Says whether predictions are answered now."""
    host.check_ready()
    return HealthAnswer(status="ready")
