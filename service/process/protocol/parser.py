"""httptools' parser without upgrades.

httptools takes a request that offers one to have no body and reads the body as the next request.
Java's client offers h2c on every new connection.
"""

from __future__ import annotations

from array import array

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


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
