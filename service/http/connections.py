"""Connections: uvicorn's HTTP protocol, with patience that ends and refusals that cost little.

In: bytes of a client. Out: requests, as uvicorn makes them. uvicorn lets a client take
for ever over its request line and headers, and over the rest of a body whose answer is
already sent; here such a connection is closed after its time. The body of a request that is
being answered has its own limit in `uploads.py`. What `shedding.py` refuses is answered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)


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
    """Closes a connection that owes us a request for too long; notices who leaves.

    uvicorn tells the request that came last that its client has left; of a client that sends ahead
    an earlier one may be in hand, which would go on and find its connection closed.

    Attributes:
        header_timeout_seconds: how long that is; set by `make_protocol`.
    """

    header_timeout_seconds: float
    _header_timer: asyncio.TimerHandle | None = None
    _in_hand: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer: a client that connects has to speak."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Starts the timer where bytes came that no request is waiting for."""
        super().data_received(data)
        # uvicorn types the cycle as never None, yet there is none before the first request.
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._start_timer()

    def on_headers_complete(self) -> None:
        """Stops the timer: from here on the request has its own limits."""
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer; tells the request in hand."""
        self._stop_timer()
        if self._in_hand is not None and not self._in_hand.response_complete:
            self._in_hand.disconnected = True
            self._in_hand.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._in_hand = cycle
        super()._start_asgi_task(cycle, app)

    def _start_timer(self) -> None:
        if self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(
                self.header_timeout_seconds, self.transport.close
            )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


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
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()


def make_protocol(header_timeout_seconds: float, refuse: Refuse | None) -> type[ImpatientProtocol]:
    """Returns the protocol for `uvicorn.Config(http=...)`, which makes one a connection.

    Args:
        header_timeout_seconds: how long a client may owe us a request.
        refuse: tells what is refused before the app hears of it; None for nothing.
    """
    settings: dict[str, object] = {"header_timeout_seconds": header_timeout_seconds}
    if refuse is None:
        return type("Protocol", (ImpatientProtocol,), settings)
    return type("Protocol", (SheddingProtocol,), {**settings, "refuse": staticmethod(refuse)})
