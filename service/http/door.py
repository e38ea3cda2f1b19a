"""The door: what cannot be answered is refused before it costs anything.

In: a request. Out: 429 for a prediction while the queue is full, at a third of what the refusal
would cost behind the router; every other request goes on. Under a flood of requests that third is
what the predictions in hand are left with. Next: `routes/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import QueueFull
from service.http.answers import PROBLEM_JSON
from service.http.hosting import PipelineHost
from service.http.problems import PROBLEM_KINDS, describe_kind

_FULL = PROBLEM_KINDS[QueueFull]


class Door:
    """ASGI middleware: lets no prediction in while the queue is full."""

    def __init__(self, app: ASGIApp, host: PipelineHost, routes: Iterable[APIRoute]) -> None:
        """Wraps `app`.

        Args:
            app: what is behind the door.
            host: whose pipeline has the queue.
            routes: the predictions, all of them POST; their paths have no parameters.
        """
        self._app = app
        self._host = host
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is not None and scope["method"] == "POST" and self._host.ready:
            try:
                self._host.pipeline.check_room()
            except QueueFull as full:
                scope["route"] = route  # for the metrics
                await _refuse(full, scope, send)
                return
        await self._app(scope, receive, send)


async def _refuse(full: QueueFull, scope: Scope, send: Send) -> None:
    state = scope["state"]
    state["problem"] = _FULL.code
    problem = describe_kind(_FULL, state["request_id"])
    body = problem.model_dump_json(exclude_none=True).encode()
    seconds = max(1, math.ceil(full.retry_after_seconds or 1))
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", PROBLEM_JSON.encode()),
        (b"retry-after", b"%d" % seconds),
    ]
    await send({"type": "http.response.start", "status": _FULL.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
