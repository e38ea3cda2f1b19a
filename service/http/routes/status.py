"""Routes of health, the model card and metrics."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.routing import Route

from service.errors import UnavailableError
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.responses.openapi import document_answer, document_problems
from service.http.responses.schemas import HealthAnswer, InfoAnswer, answer_info
from service.http.security.keys import PREDICT, PUBLIC, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.http.telemetry.metrics import Metrics, open_registry

router = APIRouter()
metrics_router = APIRouter()


@router.get(
    "/info",
    tags=["model"],
    dependencies=[*PREDICT, LIMITED, KNOWN_NAMES],
    responses=document_problems(*ROUTE_PROBLEMS),
)
async def info(served: Served) -> InfoAnswer:
    """Describes the model: licence, origin, input, labels with thresholds, accuracy."""
    return answer_info(served.pipeline)


@router.get("/livez", tags=["health"])
async def live() -> HealthAnswer:
    """Returns 200 while the process answers, ready or not."""
    return HealthAnswer(status="alive")


@router.get("/readyz", tags=["health"], responses=document_problems(UnavailableError))
async def ready(served: Served) -> HealthAnswer:
    """Returns 200 if predictions are answered now."""
    served.check_ready()
    return HealthAnswer(status="ready")


# Not async: with several workers it reads many files, which would block the event loop.
@metrics_router.get(
    "/metrics",
    tags=["health"],
    dependencies=[PUBLIC],
    response_class=Response,
    responses=document_answer("Prometheus' text format.", "text/plain"),
)
def metrics(request: Request) -> Response:
    """Writes the metrics of this process, or of all workers that share them."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)


def make_metrics_app(source: Metrics) -> Starlette:
    """Returns the app of `metrics_port`, which has the metrics at every path."""
    app = Starlette(routes=[Route("/{path:path}", metrics)])
    app.state.registry = open_registry(source)
    return app
