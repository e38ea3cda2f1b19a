"""The app: routes, errors and the life of the pipeline, put together.

In: settings. Out: an ASGI app; `server.py` runs it, and so does any ASGI server with
`service.http.app:create_app` as its factory. Next: `access.py`, the outermost layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from service.http.access import Access
from service.http.answers import add_problem_handlers
from service.http.body_budget import BodyBudget, HoldBodies
from service.http.browsers import PageGuard, read_origins
from service.http.fetching import Fetcher
from service.http.hosting import PipelineHost
from service.http.keys import KeyRing
from service.http.rates import RateLimiter
from service.http.routes import health, info, labels, predict
from service.settings import Settings

DISTRIBUTION = "ml-decoder-serve"

_DESCRIPTION = """Multi-label tags for photos, by ML-Decoder.

Errors are RFC 9457 `application/problem+json` with a stable `code`. Images are JPEG, PNG,
WebP, GIF or BMP, recognised by content; the first frame counts; transparency lies on
white; the EXIF orientation is applied."""


def create_app(host: PipelineHost | None = None) -> FastAPI:
    """Makes the app; the pipeline opens when the app starts, in the background.

    Args:
        host: who opens the pipeline; None opens what the environment's settings say.

    Raises:
        StartError: the keys, the rate limit or the origins of the settings are none.
    """
    host = host or PipelineHost(Settings())
    app = FastAPI(
        title="ML-Decoder",
        description=_DESCRIPTION,
        version=_find_version(),
        redirect_slashes=False,
        lifespan=_live,
    )
    app.state.host = host
    add_problem_handlers(app)
    _add_guards(app, host.settings)
    app.add_middleware(Access)
    for router in (predict.router, labels.router, info.router, health.router):
        app.include_router(router)
    return app


def _add_guards(app: FastAPI, settings: Settings) -> None:
    app.state.keys = KeyRing(settings)
    app.state.budget = BodyBudget(settings.max_held_bytes)
    app.state.fetcher = None
    if settings.url_input:
        app.state.fetcher = Fetcher(
            max_bytes=settings.max_body_bytes,
            timeout_seconds=settings.url_timeout_seconds,
            places=settings.queue_size,
        )
    app.state.rates = None if settings.rate_limit is None else RateLimiter(settings.rate_limit)
    origins = read_origins(settings.cors_origins)
    if origins is not None:
        app.add_middleware(CORSMiddleware, **origins)
    app.add_middleware(HoldBodies, budget=app.state.budget)
    app.add_middleware(PageGuard)


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    host: PipelineHost = app.state.host
    opening = asyncio.create_task(host.open())
    yield
    await opening
    await host.drain()


def _find_version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
