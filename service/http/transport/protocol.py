"""Connections: uvicorn's HTTP protocol, with patience that ends and refusals that cost little.

In: bytes of a client. Out: requests, as uvicorn makes them. uvicorn lets a client take for ever
over its request line and headers, over the rest of a body whose answer is already sent and over
the reading of its answers, and send any number of headers, behind a body too, and of requests
ahead; here such a connection is closed. The body of a request that is being answered has its own
limit in `uploads.py`. What `shedding.py` refuses is answered here. A client that is still sending
when the connection is to end is left to `lingering.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.http.transport.head_holder import HeadHolder
from service.http.transport.lingering import LingeringTransport
from service.http.transport.parser import SteadyParser
from service.settings import Settings

_MOST_HEAD_BYTES = 65536
_MOST_HEADERS = 200
_MOST_AHEAD = 16


class Refusal(NamedTuple):
    """An answer that needs nothing of the app.

    Attributes:
        status: HTTP status.
        headers: but for the length and what the server adds to every answer.
        body: all of it.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Refuse = Callable[[Mapping[str, Any]], Refusal | None]
"""Tells of a request, by its ASGI scope, how it is refused; None where it goes on to the app."""


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection that owes us something for too long, or sends too much ahead.

    uvicorn tells the request that came last that its client has left; of a client that sends ahead
    an earlier one may be in hand, which would go on and find its connection closed.

    Attributes:
        header_timeout_seconds: how long a client may owe us a request.
        body_timeout_seconds: how long it may owe us the rest of a body whose answer is sent, or
            take nothing of its answer.
    """

    header_timeout_seconds: float
    body_timeout_seconds: float
    _lingering: LingeringTransport
    _request_timer: asyncio.TimerHandle | None = None
    _reading_timer: asyncio.TimerHandle | None = None
    _unsent_bytes = 0
    _in_hand: RequestResponseCycle | None = None
    _in_message = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer: a client that connects has to speak."""
        self._lingering = LingeringTransport(transport, self.body_timeout_seconds)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        self.parser = SteadyParser(self, self)
        self._start_request_timer(self.header_timeout_seconds)

    def data_received(self, data: bytes) -> None:
        """Starts the timer where bytes came that no request is waiting for."""
        if self._lingering.lingers:
            return
        if self._in_message:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MOST_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")
        # uvicorn types the cycle as never None, yet there is none before the first request.
        elif self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._wait_on()

    def on_message_begin(self) -> None:
        """Notes that the client owes us a request."""
        self._in_message = True
        # What came before it in these bytes, most of a body perhaps, is none of its head.
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts; those behind the body are counted apart.

        Raises:
            ValueError: there are too many; the parser makes it an error of its own.
        """
        if len(self.headers) == _MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stops the timer: from here on the request has its own limits.

        Raises:
            ValueError: too many requests wait for the one in hand.
        """
        self._head_bytes = 0
        self._stop_request_timer()
        if len(self.pipeline) == _MOST_AHEAD:
            raise ValueError("too many requests ahead")
        self._lingering.client_sends = True
        super().on_headers_complete()
        # What stands behind the body is no header of the request (RFC 9110, section 6.5.1).
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body; what is not body may be as long as a head."""
        # The parser keeps a header behind the body, and copies it with each piece that comes.
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Lets a connection rest whose answer was there before the body."""
        if httptools.HttpRequestParser.should_upgrade(self.parser):
            return  # its body is still to come: `upgrades.py`
        self._in_message = False
        self._lingering.end_request()
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._stop_request_timer()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers; tells the request in hand."""
        self._stop_request_timer()
        self._stop_reading_timer()
        self._lingering.stop()
        if self._in_hand is not None and not self._in_hand.response_complete:
            self._in_hand.disconnected = True
            self._in_hand.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Closes as soon as the request in hand is answered."""
        self._lingering.hurry()
        super().shutdown()

    def pause_writing(self) -> None:
        """Starts a timer: a client has to take its answers."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Stops it."""
        self._stop_reading_timer()
        super().resume_writing()

    def _wait_on(self) -> None:
        rests = self.timeout_keep_alive_task is not None
        if self._lingering.client_sends:
            self._start_request_timer(self.body_timeout_seconds)
        elif self._in_message or not rests:
            self._start_request_timer(self.header_timeout_seconds)

    def _watch_reading(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._reading_timer = self.loop.call_later(self.body_timeout_seconds, self._check_reading)

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_reading()  # slow, but it reads
        else:
            self.transport.abort()

    def _stop_reading_timer(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._in_hand = cycle
        if cycle.scope["method"] != "HEAD":  # whose body uvicorn does not write
            cycle.transport = cast("asyncio.Transport", HeadHolder(self._lingering))
        super()._start_asgi_task(cycle, app)

    def _start_request_timer(self, seconds: float) -> None:
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(seconds, self._lingering.close_now)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


class SheddingProtocol(ImpatientProtocol):
    """Answers what is refused without a task and without a layer of the app.

    Attributes:
        refuse: tells what that is; set by `make_protocol`.
    """

    refuse: Refuse

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # Who sends ahead or does not read its answers waits for its turn as everybody does: each
        # refusal would start the next one from within, or be kept in memory.
        waits_in_turn = self.pipeline or self.flow.write_paused
        refusal = None if waits_in_turn else self.refuse(cycle.scope)
        if refusal is None:
            super()._start_asgi_task(cycle, app)
        else:
            self._answer(cycle, refusal)

    def _answer(self, cycle: RequestResponseCycle, refusal: Refusal) -> None:
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
        cycle.on_response = _do_nothing  # else both would hold each other, as garbage
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _do_nothing() -> None:
    """Stands for what has been called."""


def make_protocol(settings: Settings, refuse: Refuse | None) -> type[ImpatientProtocol]:
    """Returns the protocol for `uvicorn.Config(http=...)`, which makes one a connection.

    Args:
        settings: how long clients may take.
        refuse: tells what is refused before the app hears of it; None for nothing.
    """
    patience: dict[str, object] = {
        "header_timeout_seconds": settings.header_timeout_seconds,
        "body_timeout_seconds": settings.body_timeout_seconds,
    }
    if refuse is None:
        return type("Protocol", (ImpatientProtocol,), patience)
    return type("Protocol", (SheddingProtocol,), {**patience, "refuse": staticmethod(refuse)})
