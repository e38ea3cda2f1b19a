"""The service on Ray Serve: the same app, one copy a replica.

In: settings from the environment of the replicas (`ML_DECODER_*`, see `deploy/ray/serve.yaml`).
Out: `app`, which `serve run` and `serve deploy` find by name. Ray starts and stops replicas by
the number of requests that wait or run; a replica takes requests when its model is open.
"""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.app import create_app, live
from service.http.host import PipelineHost
from service.http.telemetry.access import RAW_REQUEST_ID
from service.http.telemetry.logs import configure_logs
from service.settings import Settings


def build_app() -> FastAPI:
    """Returns the app of one replica; called there, so nothing of it has to be sent."""
    settings = Settings()
    configure_logs(settings.log_level, settings.log_format)
    app = create_app(PipelineHost(settings))
    # Unlike under `ml-decoder serve`, nobody asks /readyz: Ray routes to a replica once it has
    # started, so it has started when the model is open.
    app.router.lifespan_context = partial(live, opened_first=True)
    app.add_middleware(LeaveRequestId)
    return app


class LeaveRequestId:
    """ASGI middleware: sends no `X-Request-ID`, for Ray adds the one that it gave the request."""

    def __init__(self, app: ASGIApp) -> None:
        """Wraps `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [pair for pair in headers if pair[0] != RAW_REQUEST_ID]
            await send(message)

        await self._app(scope, receive, send_without)


class MLDecoder:
    """A replica; Ray makes it an ASGI app."""

    app: FastAPI

    def check_health(self) -> None:
        """Raises where the replica does not answer any more; Ray then starts another."""
        host: PipelineHost = self.app.state.host
        host.check_ready()


app = serve.deployment(serve.ingress(build_app)(MLDecoder), name="ml-decoder").bind()
