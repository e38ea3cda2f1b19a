"""Predictions bypass FastAPI, whose layers cost more than all other Python of a prediction.

FastAPI documents their routes, and answers 405.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request
from fastapi.params import Security
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.http.responses.problems import answer_error
from service.pipeline.host import PipelineHost


class DirectRoute(APIRoute):
    """Calls the guards, dependencies that take a request and return nothing, then the endpoint."""

    def __init__(self, *args: Any, **parameters: Any) -> None:  # noqa: ANN401 - FastAPI's own
        super().__init__(*args, **parameters)
        # Security classes only document.
        self._guards = [
            depends.dependency
            for depends in self.dependencies
            if depends.dependency is not None and not isinstance(depends, Security)
        ]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["method"] not in (self.methods or ()):
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)
        request = Request(scope, receive, send)
        for guard in self._guards:
            await guard(request)
        response = await self.endpoint(request)
        await response(scope, receive, send)


class DirectRouter:
    """ASGI middleware: sends predictions to their POST `routes`, whose paths have no parameters.

    While the queue is full it refuses them with 429 before their bodies are read.
    """

    def __init__(self, app: ASGIApp, host: PipelineHost, routes: Iterable[APIRoute]) -> None:
        self._app = app
        self._host = host
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._routes.get(scope["path"].removeprefix(scope["root_path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # for the metrics
        try:
            if self._host.ready:
                self._host.pipeline.queue.check_room()
            await route.handle(scope, receive, send)
        except ServiceError as error:
            await answer_error(Request(scope), error)(scope, receive, send)
