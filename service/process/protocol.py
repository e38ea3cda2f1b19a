"""uvicorn's HTTP protocol with what uvicorn lacks: limits, cheap refusals, answers that arrive.

- **Timeouts.** uvicorn has none for a request's head, the rest of a body whose answer is sent, and
  clients that do not read their answers or read them slowly; here the connection is closed. The
  body of a request in progress has its own timeout in `requests/body.py`.
- **Limits** on the number of connections: `connections.py`.
- **Limits** on the number of headers, the bytes of a head, trailer or chunk extension, and the
  pipelined requests. Trailers are dropped: uvicorn adds them to the headers (RFC 9110, 6.5.1).
- **Disconnects.** uvicorn notifies the last request only, even if an earlier one is in progress.
- **Whole answers.** uvicorn writes an answer's head, then its body. A proxy passes a head on at
  once: if the process is killed before it writes the body, no other replica can answer. Here one
  write has both.
- **Load shedding.** `refuse` answers before the app does: 0.06 ms of processor time, not 0.26.
- **Lingering close.** A connection that is closed with bytes unread is reset, and the client loses
  the answer (RFC 9112, 9.6). `LingeringTransport` ends our side and drops input for a limited time.
- **Upgrades.** httptools takes a request that offers one to have no body and reads the body as the
  next request. Java's client offers h2c on every new connection. `SteadyParser` treats `Upgrade`
  like any other header, as a server may (RFC 9110, 7.8).

uvicorn documents none of the names that this uses, which may change with any minor version:
`_start_asgi_task`, `_unset_keepalive_if_required`, the callbacks, the cycle's state. So
`pyproject.toml` limits the version, and `test_protocol.py` checks each name.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.process.connections import Connections
from service.settings import Settings

_MAX_HEAD_BYTES = 65536
_MAX_HEADERS = 200
_MAX_AHEAD = 16
# Of unread answers, while there are as many bytes: 12 MB, the maps of 16 photos, take 13 minutes.
_LEAST_BYTES_PER_SECOND = 16384
# Of an answer in the kernel beyond what the client's window takes. Without a limit, the kernel took
# 2 MB for each client that did not read; these bytes were in no budget and watched by no timeout.
_MAX_UNSENT_BYTES = 131_072
# At the end of the process: enough for an answer to reach its client.
_SHUTDOWN_LINGER_SECONDS = 0.5
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
# uvicorn writes it before the head of the answer.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A longer body leaves the process in several pieces anyway, and joining would copy it.
_MAX_JOINED_BYTES = 262_144


class Refusal(NamedTuple):
    """An answer without the app; the protocol adds the length and the server's own headers."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Refuse = Callable[[Mapping[str, Any]], Refusal | None]
"""Returns the refusal for a request, by its ASGI scope, or None to pass it on."""

SURPLUS = "ml_decoder.surplus"
"""In the scope of requests on a connection that is accepted for health only."""


class LingeringTransport:
    """A transport whose `close` lingers while the client sends; `close_now` does not.

    `client_sends` is whether the rest of a request's body is still to come. While it `lingers`,
    input is to be dropped, and `write` does nothing. A client that reads too slowly while it is
    watched, or after the close, is cut off. If `expects_head`, the next piece is the head of an
    answer: it is written with the piece after it.
    """

    def __init__(self, transport: asyncio.Transport, linger_seconds: float) -> None:
        self.client_sends = False
        self.lingers = False
        self.expects_head = False
        self._head = b""
        self._transport = transport
        self._linger_seconds = self._reading_seconds = linger_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        opened = transport.get_extra_info("socket")  # None after the close
        self._file = -1 if opened is None else opened.fileno()
        with suppress(OSError, AttributeError):  # a Unix socket, a system without the option
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the transport
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self.lingers:
            return
        if self.expects_head and data != _CONTINUE:
            self._head, self.expects_head = data, False
            return
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _MAX_JOINED_BYTES:
                data = head + data
            else:
                self._transport.write(head)
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        if not self.client_sends or self._transport.is_closing():
            self.close_now()
        elif not self.lingers:
            self.lingers = True
            self._transport.write_eof()
            self._transport.resume_reading()
            self._start_timer()

    def close_now(self) -> None:
        if self._reading_timer is None and self._transport.get_write_buffer_size():
            self.watch_reading()
        self._transport.close()  # waits until everything is sent

    def watch_reading(self) -> None:
        self._unread_bytes = self._count_unread()
        loop = asyncio.get_running_loop()
        self._reading_timer = loop.call_later(self._reading_seconds, self._check_reading)

    def stop_watching(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _check_reading(self) -> None:
        expected = min(self._unread_bytes, _LEAST_BYTES_PER_SECOND * self._reading_seconds)
        if self._unread_bytes - self._count_unread() >= expected:
            self.watch_reading()
        else:
            self._transport.abort()

    def _count_unread(self) -> int:
        # With what the kernel holds: it takes more from us in steps of a megabyte only.
        count = self._transport.get_write_buffer_size()
        with suppress(OSError, ValueError):
            held = fcntl.ioctl(self._file, termios.TIOCOUTQ, bytes(4))
            count += int.from_bytes(held, sys.byteorder)
        return count

    def end_request(self) -> None:
        self.client_sends = False
        if self.lingers:
            self.close_now()

    def limit_linger(self) -> None:
        self._linger_seconds = min(self._linger_seconds, _SHUTDOWN_LINGER_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._start_timer()

    def stop(self) -> None:
        self.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._linger_seconds, self._transport.abort)


class SteadyParser(httptools.HttpRequestParser):
    """httptools' parser for a protocol; it reads on when a client offers an upgrade."""

    def __init__(self, protocol: HttpToolsProtocol, callbacks: object) -> None:
        super().__init__(callbacks)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._protocol = protocol

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        parser = self
        while True:
            try:
                httptools.HttpRequestParser.feed_data(parser, data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                parser = _restart_at_body(self._protocol)
            else:
                return


class _BodyCallbacks:
    """Ignores the repeated head, but not its end: without a body the message is complete there."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self.muted = True
        self._protocol = protocol

    def __getattr__(self, name: str) -> object:
        callback = getattr(self._protocol, name)
        if name in ("on_body", "on_message_complete"):
            return callback
        return lambda *arguments: None if self.muted else callback(*arguments)


def _restart_at_body(protocol: HttpToolsProtocol) -> SteadyParser:
    """Sets a parser that expects the body of the request whose head was parsed last."""
    callbacks = _BodyCallbacks(protocol)
    parser = protocol.parser = SteadyParser(protocol, callbacks)
    headers = [header for header in protocol.scope["headers"] if header[0] in _BODY_HEADERS]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
    callbacks.muted = False
    return parser


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
