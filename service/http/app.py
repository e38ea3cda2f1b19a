"""The FastAPI app: routes, middleware, errors, and the life of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from service.errors import StartError
from service.http.dialects.table import choose_dialects
from service.http.requests.body import BodyBudget, BudgetMiddleware
from service.http.responses.openapi import DocumentedApp
from service.http.responses.problems import add_problem_handlers, answer_error, render_problem
from service.http.routes import embed, examples, labels, page, predict, status
from service.http.routes.direct import DirectRouter
from service.http.security.browsers import Sites, read_origins
from service.http.security.keys import KeyRing, keep_reading
from service.http.security.proxies import TrustedProxies
from service.http.security.rates import RateLimiter
from service.http.telemetry.access import Access
from service.http.telemetry.metrics import Metrics, keep_sampling, open_registry
from service.pipeline.served import ServedPipeline
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from service.http.telemetry.traces import Traces

# Of one address. A key has at least 16 characters, so this slows clients rather than guesses.
_WRONG_KEYS = "60/minute"
_NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False, auto_configure=False)
_DESCRIPTION = "Multi-label tags for photos. Errors are RFC 9457 problems with a stable `code`."
# In the order of `/docs`.
_TAGS = [
    {"name": "predict", "description": "Labels and embeddings of images."},
    {"name": "labels", "description": "Label sets of your own: register, learn, change, delete."},
    {"name": "model", "description": "The model card."},
    {"name": "health", "description": "Liveness, readiness and metrics."},
    {"name": "dialects", "description": "The same model for other programs (setting `dialects`)."},
]


class ProxiedApp(DocumentedApp):
    """The app, which reads the headers of its proxies first: traces need them too."""

    def __init__(self, settings: Settings, **arguments: Any) -> None:  # noqa: ANN401 - FastAPI's own
        super().__init__(**arguments)
        self._proxies = TrustedProxies(super().__call__, settings.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        await self._proxies(scope, receive, send)


def create_app(
    served: ServedPipeline | None = None, tracer_provider: TracerProvider | None = None
) -> FastAPI:
    """Makes the app, whose pipeline opens at its start. Raises StartError for a bad setting."""
    served = served or ServedPipeline(Settings())
    traces = _open_traces(served.settings, tracer_provider)
    app = ProxiedApp(
        served.settings,
        title="ML-Decoder",
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        version=metadata.version("ml-decoder-serve"),
        # `routes/page.py` has both: they are limited, and load nothing from other hosts.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        telemetry=_NO_TELEMETRY if traces is None else traces.telemetry,
    )
    app.state.served = served
    dialects = choose_dialects(served.settings.dialects)
    app.state.renderers = {"": render_problem} | {each.prefix: each.render for each in dialects}
    add_problem_handlers(app)
    app.add_middleware(DirectRouter, served=served, routes=predict.ROUTES)
    _add_guards(app, served.settings)
    if traces is not None:
        traces.watch(app, served)
    app.state.metrics = Metrics()
    served.observers.append(app.state.metrics)
    app.add_middleware(Access, metrics=app.state.metrics, served=served)
    # For the OpenAPI document and for 405; else `DirectRouter` calls them.
    app.router.routes.extend(predict.ROUTES)
    routers = [embed.router, labels.router, examples.router, status.router]
    if served.settings.metrics_port is None:
        app.state.registry = open_registry(app.state.metrics)
        routers.append(status.metrics_router)
    for router in (*routers, *(each.router for each in dialects), page.router):
        app.include_router(router)
    return app


# The modules of features that are off are not imported: a cold start is mostly imports.
def _open_traces(settings: Settings, provider: TracerProvider | None) -> Traces | None:
    if provider is None and settings.traces == "off":
        return None
    try:
        from service.http.telemetry.traces import Traces, open_provider
    except ImportError as error:
        message = "traces need OpenTelemetry: pip install -e '.[otel]' in the checkout"
        raise StartError(message) from error
    return Traces(provider or open_provider())


def _add_guards(app: FastAPI, settings: Settings) -> None:
    app.state.keys = KeyRing(settings)
    app.state.wrong_keys = RateLimiter(_WRONG_KEYS)
    app.state.sites = Sites(settings)
    app.state.budget = BodyBudget(settings)
    app.state.fetcher = None
    if settings.url_input:
        from service.http.requests.urls import Fetcher

        app.state.fetcher = Fetcher(settings)
    app.state.rates = None if settings.rate_limit is None else RateLimiter(settings.rate_limit)
    app.add_middleware(BudgetMiddleware, budget=app.state.budget, refuse=answer_error)
    origins = read_origins(settings.cors_origins)
    if origins is not None:
        app.add_middleware(CORSMiddleware, **origins)


@asynccontextmanager
async def lifespan(app: FastAPI, *, opened_first: bool = False) -> AsyncIterator[None]:
    """Opens the pipeline, before the app starts if `opened_first`, samples metrics, drains."""
    served: ServedPipeline = app.state.served
    opening = asyncio.create_task(served.open())
    tasks = [
        asyncio.create_task(keep_sampling(app.state.metrics, served)),
        asyncio.create_task(keep_reading(app.state.keys)),
    ]
    try:
        if opened_first:
            await opening
            if served.failure is not None:
                raise served.failure
        yield
        await served.drain()
        await opening
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        served.side_threads.stop()
