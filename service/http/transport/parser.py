"""Upgrades: a client's offer to speak another protocol is not taken up, and costs it nothing.

In: bytes of requests. Out: what httptools' parser makes of them, as if `Upgrade` were a header like
any other (RFC 9110, section 7.8: a server may ignore it). httptools itself takes such a request to
have no body, whose bytes would then be read as the next request; Java's HTTP client sends one on
every new connection. Next: `connections.py`.
"""

from __future__ import annotations

from array import array
from typing import Protocol

import httptools
from uvicorn._types import HTTPScope

_OF_THE_BODY = frozenset({b"content-length", b"transfer-encoding"})


class Reader(Protocol):
    """Who gets the requests: uvicorn's protocol.

    Attributes:
        parser: what reads them now.
        scope: of the request that is being read.
    """

    parser: httptools.HttpRequestParser
    scope: HTTPScope


class SteadyParser(httptools.HttpRequestParser):
    """httptools' parser, which reads on where a client offers an upgrade."""

    def __init__(self, reader: Reader, callbacks: object) -> None:
        """Reads for `reader`; what is read goes to `callbacks`, as httptools names them."""
        super().__init__(callbacks)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._reader = reader

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        """Reads bytes, of any number of requests.

        Raises:
            httptools.HttpParserError: they are no HTTP.
        """
        parser = self
        while True:
            try:
                httptools.HttpRequestParser.feed_data(parser, data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                parser = _read_on(self._reader)
            else:
                return


class _Muted:
    """Passes on what a parser reads, once it may."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.muted = True

    def __getattr__(self, name: str) -> object:
        heard = getattr(self._reader, name)
        # A head that is read again; without a body its message is complete at once.
        if name in ("on_body", "on_message_complete"):
            return heard

        def pass_on(*arguments: object) -> None:
            if not self.muted:
                heard(*arguments)

        return pass_on


def _read_on(reader: Reader) -> SteadyParser:
    """Sets a parser that expects the body of the request whose head the last one has read."""
    callbacks = _Muted(reader)
    parser = reader.parser = SteadyParser(reader, callbacks)
    headers = [header for header in reader.scope["headers"] if header[0] in _OF_THE_BODY]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
    callbacks.muted = False
    return parser
