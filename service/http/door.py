"""The door: predictions go straight to their routes, or are refused before they cost anything.

In: a request. Out: for a prediction, what its route answers, or 429 while the queue is full; every
other request goes on to the framework, whose layers and router take a twelfth of the Python of a
prediction, and would make a refusal three times as dear: under a flood of requests the predictions
in hand are left with what the refusals do not take. Next: `routes/`.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import QueueFull, ServiceError
from service.http.answers import PROBLEM_JSON, answer_error
from service.http.hosting import PipelineHost
from service.http.problems import PROBLEM_KINDS, describe_kind, tell_retry_seconds

_FULL = PROBLEM_KINDS[QueueFull]


class Door:
    """ASGI middleware: leads predictions to their routes; lets none in while the queue is full."""

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
                self._host.pipeline.check_room()
            await route.handle(scope, receive, send)
        except QueueFull as full:
            await _refuse(full, scope, send)
        except ServiceError as error:
            await answer_error(Request(scope), error)(scope, receive, send)


async def _refuse(full: QueueFull, scope: Scope, send: Send) -> None:
    state = scope["state"]
    state["problem"] = _FULL.code
    body = describe_kind(_FULL, state["request_id"]).model_dump_json(exclude_none=True).encode()
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", PROBLEM_JSON.encode()),
        (b"retry-after", str(tell_retry_seconds(_FULL, full)).encode()),
    ]
    await send({"type": "http.response.start", "status": _FULL.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
