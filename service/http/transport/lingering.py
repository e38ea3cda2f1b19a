"""Lingering: an answer that is there before its request reaches a client that is still sending.

In: a connection that is to end. Out: the same, closed. Closed with bytes unread, it would be reset,
and the client, or the proxy before it, would lose the answer (RFC 9112, section 9.6). So our side
ends first, and what still comes is thrown away until the client ends its own, for a limited time.
Next: `connections.py`, which tells what the client is sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

# At the end of the process: enough for an answer's way to its client.
_HURRIED_SECONDS = 0.5


class LingeringTransport:
    """A transport that is closed without loss of what it was given to write.

    Attributes:
        client_sends: whether a request is here, but for the rest of its body.
        lingers: whether it waits for the client to end; what comes is to be thrown away.
        write: the transport's own, until it lingers.
    """

    def __init__(self, transport: asyncio.Transport, linger_seconds: float) -> None:
        """Wraps `transport`, to linger for so long at most."""
        self.client_sends = False
        self.lingers = False
        self.write: Callable[[bytes], None] = transport.write
        self._transport = transport
        self._linger_seconds = linger_seconds
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Returns whether nothing can be sent any more."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Sends what there is to send, and closes: at once where the client sends nothing."""
        if not self.client_sends or self._transport.is_closing():
            self.close_now()
        elif not self.lingers:
            self._linger()

    def close_now(self) -> None:
        """Sends what there is to send, and closes: the client has had its time."""
        self._transport.close()

    def end_request(self) -> None:
        """Notes that all of the request is here: nobody has to be waited for."""
        self.client_sends = False
        if self.lingers:
            self.close_now()

    def hurry(self) -> None:
        """Lingers for half a second at most, from now on."""
        self._linger_seconds = min(self._linger_seconds, _HURRIED_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._start_timer()

    def stop(self) -> None:
        """Stops the timer: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _linger(self) -> None:
        self.lingers = True
        self.write = _drop
        self._transport.write_eof()
        self._transport.resume_reading()
        self._start_timer()

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._linger_seconds, self._transport.abort)


def _drop(_data: bytes) -> None:
    """Stands for `write` once our side has ended, as that of a closing transport does."""
