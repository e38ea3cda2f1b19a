"""One connection: timeouts, limits, and refusals that the app does not see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.process.protocol.open_connections import Connections
from service.process.protocol.parser import SteadyParser
from service.process.protocol.transport import LingeringTransport
from service.settings import Settings

_MAX_HEAD_BYTES = 65536
_MAX_HEADERS = 200
_MAX_AHEAD = 16


class Refusal(NamedTuple):
    """An answer without the app; the protocol adds the length and the server's own headers."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Refuse = Callable[[Mapping[str, Any]], Refusal | None]
"""Returns the refusal for a request, by its ASGI scope, or None to pass it on."""

SURPLUS = "ml_decoder.surplus"
"""In the scope of requests on a connection that is accepted for health only."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection of an app whose requests `refuse` may answer."""

    _lingering: LingeringTransport
    _is_surplus = False
    _request_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    _in_message = False
    _head_bytes = 0

    def __init__(
        self,
        settings: Settings,
        connections: Connections,
        refuse: Refuse,
        **uvicorns: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**uvicorns)
        self._header_seconds = settings.header_timeout_seconds
        # For a body whose answer is sent, and for reading answers.
        self._body_seconds = settings.body_timeout_seconds
        self._open_connections = connections
        self._refuse = refuse

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport, self._body_seconds)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        self.parser = SteadyParser(self, self)
        self._start_request_timer(self._header_seconds)
        self._is_surplus = not self._open_connections.add(self)

    def find_idle_start(self) -> float | None:
        """As in `Connection`; connections that linger or are closing count as idle for long."""
        if self._lingering.get_write_buffer_size():
            return None  # the client reads an answer
        if self._lingering.is_closing():
            return 0.0
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        if self._request_timer is None:
            return None
        sends = self._lingering.client_sends
        return self._request_timer.when() - (self._body_seconds if sends else self._header_seconds)

    def abort(self) -> None:
        """Closes the connection at once."""
        self._lingering.abort()

    def data_received(self, data: bytes) -> None:
        if self._lingering.lingers:
            return
        if self._in_message:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")
        # uvicorn types the cycle as never None, yet there is none before the first request.
        elif self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            if self._lingering.client_sends:
                self._start_request_timer(self._body_seconds)
            elif self._in_message or self.timeout_keep_alive_task is None:
                self._start_request_timer(self._header_seconds)

    def on_message_begin(self) -> None:
        self._in_message = True
        # Earlier bytes of the same packet, most of a body perhaps, are not counted.
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) == _MAX_HEADERS:
            raise ValueError("too many headers")  # the parser makes it an error of its own
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._stop_request_timer()
        if len(self.pipeline) == _MAX_AHEAD:
            raise ValueError("too many requests ahead")
        self._lingering.client_sends = True
        super().on_headers_complete()
        self.headers = []  # trailers go here

    def on_body(self, body: bytes) -> None:
        # A trailer or chunk extension may be as long as a head: the parser buffers an unfinished
        # one and copies it with each packet.
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if httptools.HttpRequestParser.should_upgrade(self.parser):
            return  # the body is still to come: `SteadyParser`
        self._in_message = False
        self._lingering.end_request()
        super().on_message_complete()
        # After an early answer the rest of the body has stopped the keep-alive timer.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._stop_request_timer()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.remove(self)
        self._stop_request_timer()
        self._lingering.stop()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._lingering.limit_linger()
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._lingering.watch_reading()

    def resume_writing(self) -> None:
        self._lingering.stop_watching()
        if self._lingering.is_closing():
            self._lingering.watch_reading()
        super().resume_writing()

    def _start_request_timer(self, seconds: float) -> None:
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(seconds, self._lingering.close_now)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Callable[..., Any]) -> None:
        # If the client pipelines requests or does not read, the app answers: each refusal would
        # start the next one recursively, or stay in memory.
        if self._is_surplus:
            cycle.scope[SURPLUS] = True  # type: ignore[literal-required]
            cycle.keep_alive = False
        refusal = None if self.pipeline or self.flow.write_paused else self._refuse(cycle.scope)
        if refusal is None:
            self._running = cycle
            # An answer to HEAD has no second piece.
            self._lingering.expects_head = cycle.scope["method"] != "HEAD"
            super()._start_asgi_task(cycle, app)
        else:
            self._send_refusal(cycle, refusal)

    def _send_refusal(self, cycle: RequestResponseCycle, refusal: Refusal) -> None:
        headers = [
            *self.server_state.default_headers,
            (b"content-length", b"%d" % len(refusal.body)),
            *refusal.headers,
        ]
        if not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[refusal.status], *lines, b"\r\n", refusal.body)))
        cycle.response_started = cycle.response_complete = True
        cycle.on_response = lambda: None  # breaks a reference cycle
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
