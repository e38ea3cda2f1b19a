"""Connections: uvicorn's HTTP protocol, with patience that ends.

In: bytes of a client. Out: requests, as uvicorn makes them. uvicorn lets a client take
for ever over its request line and headers, and over the rest of a body whose answer is
already sent; here such a connection is closed after `HEADER_TIMEOUT_SECONDS`. The body
of a request that is being answered has its own limit in `uploads.py`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection that owes us a request for too long.

    Attributes:
        header_timeout_seconds: how long that is; set by `limit_header_time`.
    """

    header_timeout_seconds: float
    _header_timer: asyncio.TimerHandle | None = None

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
        """Stops the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(
                self.header_timeout_seconds, self.transport.close
            )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


def limit_header_time(seconds: float) -> type[ImpatientProtocol]:
    """Returns the protocol for `uvicorn.Config(http=...)`, which makes one a connection."""
    return type("LimitedProtocol", (ImpatientProtocol,), {"header_timeout_seconds": seconds})
