"""The outermost middleware: request ids, access log, metrics, unexpected exceptions."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Draining, ServiceError
from service.http.responses.problems import answer_error
from service.http.security.browsers import add_security_headers
from service.http.telemetry.metrics import CLIENT_LEFT, Metrics
from service.logs import request_id_of
from service.pipeline.served import ServedPipeline

RAW_REQUEST_ID = b"x-request-id"
PROBES = frozenset({"/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/metrics"})
"""Paths that orchestrators and Prometheus ask every few seconds."""

# No white space, quotes or control characters: safe in log lines and headers.
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOGGED_PATH_CHARACTERS = 200

logger = logging.getLogger(__name__)


class Access:
    """The outermost middleware: unexpected exceptions become a 500, requests cut off a 503."""

    def __init__(self, app: ASGIApp, metrics: Metrics, served: ServedPipeline) -> None:
        self._app = app
        self._metrics = metrics
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = choose_request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_of.set(request_id)
        status = 0

        async def send_answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                id_header = (RAW_REQUEST_ID, request_id.encode())
                message["headers"] = [*add_security_headers(message["headers"]), id_header]
            await send(message)

        started = time.perf_counter()
        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, send_answer)
        except ClientDisconnect:
            status = CLIENT_LEFT
        except (asyncio.CancelledError, Exception) as error:
            response = answer_error(Request(scope), self._explain(error))
            # An answer that has begun stays unfinished, so that the server closes the connection.
            if not status:
                await response(scope, receive, send_answer)
        finally:
            self._record(scope, status, time.perf_counter() - started)
            request_id_of.reset(token)

    def _explain(self, error: BaseException) -> ServiceError:
        if not isinstance(error, asyncio.CancelledError):
            unexpected = ServiceError()
            unexpected.__cause__ = error
            return unexpected
        if not self._served.draining:
            raise error
        return Draining("cut off")  # raised again, this would become a traceback and a 500

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"]
        # The template, not the path: clients choose paths, so their number has no limit.
        template: str = getattr(scope.get("route"), "path", "")
        state: Mapping[str, Any] = scope["state"]
        self._metrics.in_flight.dec()
        self._metrics.count_request(method, template, status, seconds, state.get("problem"))
        fields = {
            "method": method,
            "path": template or scope["path"][:_LOGGED_PATH_CHARACTERS],
            "status": status,
            "duration_ms": round(seconds * 1000, 1),
        }
        known = {name: state[name] for name in ("problem", "caller") if name in state}
        logger.info("request", extra={**fields, **known})


def choose_request_id(scope: Mapping[str, Any]) -> str:
    """Returns the client's `X-Request-ID` of 1 to 128 letters, digits or `._:-`, or a new id."""
    offered: str = dict(scope["headers"]).get(RAW_REQUEST_ID, b"").decode("latin-1")
    if _VALID_REQUEST_ID.fullmatch(offered):
        return offered
    # An id is no secret, so it needs no system call. Forked processes are reseeded.
    return f"{random.getrandbits(128):032x}"
