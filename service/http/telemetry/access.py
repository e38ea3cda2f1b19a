"""Access: the outermost layer of the app; every request passes through it once.

In: any HTTP request. Out: the same request with a request id, its answer with the id in
`X-Request-ID`, one line in the log, and its place in the metrics. What nobody below expected
becomes a 500 here: a traceback in the log, fixed wording for the client; what a server that ends
cuts off, a 503. Next: `routes/`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Draining
from service.http.host import PipelineHost
from service.http.responses.handlers import answer_error, answer_unexpected
from service.http.telemetry.logs import request_id_of
from service.http.telemetry.metrics import CLIENT_LEFT, Metrics

REQUEST_ID_HEADER = "X-Request-ID"
RAW_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()

# Safe to log and to send back as it is: no white space, quotes or control characters.
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Where no route fits, the log shows what was asked for, but not a megabyte of it.
_SHOWN_CHARACTERS = 200

logger = logging.getLogger(__name__)


class Access:
    """ASGI middleware: request id, log line, metrics, last resort for exceptions."""

    def __init__(self, app: ASGIApp, metrics: Metrics, host: PipelineHost) -> None:
        """Wraps `app`; counts its requests in `metrics`; `host` tells whether the server ends."""
        self._app = app
        self._metrics = metrics
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; everything but HTTP passes through untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = choose_request_id(read_request_id(scope))
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_of.set(request_id)
        answer = _Answer(send, request_id)
        started = time.perf_counter()
        self._metrics.start_request()
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            answer.status = CLIENT_LEFT
        except asyncio.CancelledError:
            if not self._host.draining:
                raise
            # The time to stop is over. Raised on, this would be a traceback and a 500.
            await answer.end(answer_error(Request(scope), Draining("cut off")), scope, receive)
        except Exception:
            logger.exception("unexpected error")
            await answer.end(answer_unexpected(Request(scope)), scope, receive)
        finally:
            self._tell(scope, answer.status, time.perf_counter() - started)
            request_id_of.reset(token)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"]
        # The template, not the path: clients choose paths, and there are no end of them.
        template: str = getattr(scope.get("route"), "path", "")
        problem: str | None = scope["state"].get("problem")
        self._metrics.end_request(method, template, status, seconds, problem)
        fields: dict[str, object] = {
            "method": method,
            "path": template or scope["path"][:_SHOWN_CHARACTERS],
            "status": status,
            "duration_ms": round(seconds * 1000, 1),
        }
        if problem is not None:
            fields["problem"] = problem
        logger.info("request", extra=fields)


class _Answer:
    """The sending side of one request: adds the id, remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 0
        self._send = send
        self._request_id = request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message["headers"],
                (RAW_REQUEST_ID, self._request_id.encode()),
            ]
        await self._send(message)

    async def end(self, response: Response, scope: Scope, receive: Receive) -> None:
        # Half an answer cannot be mended: leaving it unfinished makes the server close.
        if self.status == 0:
            await response(scope, receive, self.send)


def read_request_id(scope: Mapping[str, Any]) -> str | None:
    """Returns the request id that the client has sent, whatever it may be."""
    # Starlette's headers would be made for this alone.
    for name, value in scope["headers"]:
        if name == RAW_REQUEST_ID:
            found: str = value.decode("latin-1")
            return found
    return None


def choose_request_id(offered: str | None) -> str:
    """Returns the client's request id where it is sane, else a new one.

    Args:
        offered: value of `X-Request-ID`: 1 to 128 letters, digits or any of `._:-`.
    """
    if offered is not None and _SANE_REQUEST_ID.fullmatch(offered):
        return offered
    # No secret, so not worth a call of the system; a process that forks seeds this anew.
    return f"{random.getrandbits(128):032x}"
