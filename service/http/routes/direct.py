"""Direct routes: endpoints that read their requests and write their answers themselves.

In: a request that `door.py` (below a root path, the framework's router) has found a route for. Out:
the endpoint's answer. FastAPI documents such a route and does nothing else for it: resolving
dependencies and wrapping the answer would cost more than everything else that a prediction does in
Python. Next: `predict.py`.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.params import Security
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """Passes a request by the route's guards and hands it to the endpoint.

    A guard is a dependency that takes the request alone and returns nothing. Security classes are
    for the documentation.
    """

    def __init__(self, *args: Any, **parameters: Any) -> None:  # noqa: ANN401 - FastAPI's own
        """Prepares the route as FastAPI does, and collects its guards."""
        super().__init__(*args, **parameters)
        self._guards = [
            depends.dependency
            for depends in self.dependencies
            if depends.dependency is not None and not isinstance(depends, Security)
        ]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # 405
            return
        request = Request(scope, receive, send)
        for guard in self._guards:
            await guard(request)
        response = await self.endpoint(request)
        await response(scope, receive, send)
