"""The head of an answer is held until its body begins: one packet, one call of the system for both.

In: what uvicorn writes for one request, head and body apart. Out: the same bytes, the head with the
first of the body. Sent by itself a head wakes the client for nothing, and on a core that runs a
model. ASGI forbids a server to send it before (HTTP & WebSocket ASGI Message Format, Response
Start). Next: `lingering.py`.
"""

from __future__ import annotations

from service.http.transport.lingering import LingeringTransport

# 100 Continue, which the client waits for before it sends its body (RFC 9110, section 15.2).
_INTERIM = b"HTTP/1.1 1"


class HeadHolder:
    """The transport of one answer that has a body, empty perhaps."""

    def __init__(self, transport: LingeringTransport) -> None:
        """Writes to `transport`."""
        self._transport = transport
        self._head: bytes | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        """Writes a piece of the answer, or holds it where it is the head."""
        if self._head is not None:
            data, self._head = b"".join((self._head, data)), None
        elif not self._begun and not data.startswith(_INTERIM):
            self._head, self._begun = data, True
            return
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Returns whether nothing can be sent any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Sends what there is to send, and closes."""
        if self._head is not None:
            self.write(b"")
        self._transport.close()
