"""Metrics: the present state of all counters, for Prometheus to scrape."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from service.http.responses.openapi import document_answer

router = APIRouter(tags=["health"])


# Not async: of many workers this reads many files, in which the event loop has to answer others.
@router.get(
    "/metrics",
    response_class=Response,
    responses=document_answer("Prometheus' text format.", "text/plain"),
)
def metrics(request: Request) -> Response:
    """Writes the metrics of this process, or of all workers that share them."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
