"""The app on Ray Serve, one replica a process; settings come from the replicas' environment."""

from functools import partial

from fastapi import FastAPI
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.app import create_app, lifespan
from service.http.telemetry.access import RAW_REQUEST_ID
from service.logs import configure_logs
from service.pipeline.served import ServedPipeline
from service.settings import Settings


def build_app() -> FastAPI:
    """Returns the app; each replica calls it, because apps cannot be pickled."""
    settings = Settings()
    configure_logs(settings.log_level, settings.log_format)
    app = create_app(ServedPipeline(settings))
    # Ray sends requests to a replica that has started, without asking /readyz.
    app.router.lifespan_context = partial(lifespan, opened_first=True)
    app.add_middleware(DropRequestId)
    return app


class DropRequestId:
    """ASGI middleware: removes `X-Request-ID`, which Ray adds."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0] != RAW_REQUEST_ID]
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_without_id)


class MLDecoder:
    """A replica; Ray makes it an ASGI app."""

    app: FastAPI

    def check_health(self) -> None:
        """Raises if the replica does not answer any more; Ray then restarts it."""
        served: ServedPipeline = self.app.state.served
        served.check_ready()


app = serve.deployment(serve.ingress(build_app)(MLDecoder), name="ml-decoder").bind()
