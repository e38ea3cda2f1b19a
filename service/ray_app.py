"""The app on Ray Serve, one replica a process; settings come from the replicas' environment."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from ray import serve

from service.http.app import create_app, lifespan
from service.http.security.browsers import ChangeHeaders, RawHeaders
from service.http.telemetry.access import RAW_REQUEST_ID
from service.http.telemetry.logs import configure_logs
from service.pipeline.host import PipelineHost
from service.settings import Settings


def build_app() -> FastAPI:
    """Returns the app; each replica calls it, because apps cannot be pickled."""
    settings = Settings()
    configure_logs(settings.log_level, settings.log_format)
    app = create_app(PipelineHost(settings))
    # Ray sends requests to a replica that has started, without asking /readyz.
    app.router.lifespan_context = partial(lifespan, opened_first=True)
    app.add_middleware(ChangeHeaders, change=drop_request_id)
    return app


def drop_request_id(headers: RawHeaders) -> RawHeaders:
    """Removes `X-Request-ID`, which Ray adds."""
    return [header for header in headers if header[0] != RAW_REQUEST_ID]


class MLDecoder:
    """A replica; Ray makes it an ASGI app."""

    app: FastAPI

    def check_health(self) -> None:
        """Raises if the replica does not answer any more; Ray then restarts it."""
        host: PipelineHost = self.app.state.host
        host.check_ready()


app = serve.deployment(serve.ingress(build_app)(MLDecoder), name="ml-decoder").bind()
