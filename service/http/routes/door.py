"""The door: predictions skip the framework's router, a twelfth of their Python.

While the queue is full they are refused before their bodies are read.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.http.host import PipelineHost
from service.http.responses.problems import answer_error


class Door:
    """ASGI middleware: passes predictions to their routes unless the queue is full."""

    def __init__(self, app: ASGIApp, host: PipelineHost, routes: Iterable[APIRoute]) -> None:
        """Wraps `app`.

        Args:
            app: the framework.
            host: whose pipeline has the queue.
            routes: the predictions, all of them POST; their paths have no parameters.
        """
        self._app = app
        self._host = host
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # for the metrics
        try:
            if self._host.ready:
                self._host.pipeline.queue.check_room()
            await route.handle(scope, receive, send)
        except ServiceError as error:
            await answer_error(Request(scope), error)(scope, receive, send)
