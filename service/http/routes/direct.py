"""Predictions bypass FastAPI, whose layers cost more than all other Python of a prediction."""

from collections.abc import Iterable

from fastapi import Request
from fastapi.params import Security
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.http.responses.problems import answer_error
from service.pipeline.served import ServedPipeline


class DirectRouter:
    """Calls guards and endpoints of POST `routes`; a full queue refuses before reading bodies."""

    def __init__(self, app: ASGIApp, served: ServedPipeline, routes: Iterable[APIRoute]) -> None:
        self._app = app
        self._served = served
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._routes.get(scope["path"].removeprefix(scope["root_path"]))
        if route is None:
            # HEAD is answered as GET; the server leaves out the body.
            is_head = scope.get("method") == "HEAD"
            asked = {**scope, "method": "GET", "is_head": True} if is_head else scope
            try:
                await self._app(asked, receive, send)
            finally:
                scope["route"] = asked.get("route")  # for the metrics
            return
        scope["route"] = route  # for the metrics
        request = Request(scope, receive, send)
        try:
            if self._served.ready:
                self._served.pipeline.queue.check_room()
            for depends in route.dependencies:
                # Security classes only document.
                if depends.dependency is not None and not isinstance(depends, Security):
                    await depends.dependency(request)
            response = await route.endpoint(request)
            await response(scope, receive, send)
        except ServiceError as error:
            await answer_error(request, error)(scope, receive, send)
