"""Connection: what both clients hand to httpx, and what it means when no answer comes.

In: arguments of the clients' constructors. Out: address, headers and time-outs, checked. Next:
`tries.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import weakref
from contextlib import aclosing, closing

import httpx

from ml_decoder_client.errors import ClientError, ServiceUnreachable, UnreadableAnswer

_LONGEST_TIMEOUT_SECONDS = 86_400.0
_MOST_PORT = 65_535
_KEY = re.compile("[!-~]([ -~]*[!-~])?")


class WholeTransport(httpx.HTTPTransport):
    """Reads each answer to its end, so that one cut short is a broken connection like any other.

    Threads wait here for a connection: where they wait in httpcore 1.0.9, it sometimes closes one
    that another thread has just taken (its issue 1110).

    A forked process opens connections of its own: on those of its parent, either would read
    answers to the other's photos.
    """

    def __init__(self, connections: int) -> None:
        """Opens nothing yet; `connections` is the most at a time."""
        self._connections = connections
        self._tls = httpx.create_ssl_context()
        self.open()
        _transports.add(self)

    def open(self) -> None:
        """Begins without any connection, and with nobody waiting for one."""
        super().__init__(self._tls, limits=make_limits(self._connections))
        self._places = threading.Semaphore(self._connections)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; the answer has its body."""
        with self._places, closing(super().handle_request(request)) as response:
            response.read()
            return response


_transports: weakref.WeakSet[WholeTransport] = weakref.WeakSet()


def _leave_connections() -> None:
    for transport in _transports:
        transport.open()


if hasattr(os, "register_at_fork"):  # Windows forks nothing
    os.register_at_fork(after_in_child=_leave_connections)


class AsyncWholeTransport(httpx.AsyncBaseTransport):
    """The same for asyncio.

    Each connection has a pool of its own here, and one that was not used to the end of an answer
    is closed: where a task is cancelled at the wrong moment, a pool of httpcore 1.0.9 keeps its
    connection for nobody, until there is none left to wait for.
    """

    def __init__(self, connections: int) -> None:
        """Opens nothing yet; `connections` is the most at a time."""
        self._limits = make_limits(connections)
        self._tls = httpx.create_ssl_context()
        self._places = asyncio.Semaphore(connections)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request; the answer has its body."""
        async with self._places:
            connection = self._idle.pop() if self._idle else self._open()
            is_kept = False
            try:
                async with aclosing(await connection.handle_async_request(request)) as response:
                    await response.aread()
                is_kept = not self._is_closed
                return response
            finally:
                if is_kept:
                    self._idle.append(connection)
                else:
                    await connection.aclose()

    async def aclose(self) -> None:
        """Closes the connections; one that is used, when its answer is there."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().aclose()

    def _open(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(self._tls, limits=self._limits)


def make_limits(connections: int) -> httpx.Limits:
    """Returns the limits of a client's pool, which keeps all of its connections.

    Raises:
        ValueError: there is to be none.
    """
    if connections < 1:
        raise ValueError("connections must be at least 1")
    return httpx.Limits(max_connections=connections, max_keepalive_connections=connections)


def make_timeout(seconds: float, more_seconds: float) -> httpx.Timeout:
    """Returns the time-outs of one try; the service may work on it for `more_seconds`.

    None strikes while a call waits for a connection: others have them, which end in time.
    """
    return httpx.Timeout(seconds, read=seconds + more_seconds, pool=None)


def read_url(url: str) -> httpx.URL:
    """Returns the address of the service.

    Raises:
        ValueError: it is none.
    """
    try:
        address = httpx.URL(url)
        address.raw_host.decode().encode("idna")  # as whoever looks the name up does
    except (httpx.InvalidURL, ValueError):
        address = httpx.URL()
    # What looks a port up takes 65,616 for 80.
    has_port = address.port is None or 0 < address.port <= _MOST_PORT
    if not (address.scheme in ("http", "https") and address.host and has_port) or address.query:
        raise ValueError(f"{url!r} is no address like http://localhost:8000")
    return address


def check_timeout(seconds: float) -> float:
    """Returns the seconds of a time-out.

    Raises:
        ValueError: no socket could keep it.
    """
    if not 0 < seconds <= _LONGEST_TIMEOUT_SECONDS:
        raise ValueError(f"timeout_seconds must be above 0, at most {_LONGEST_TIMEOUT_SECONDS:g}")
    return seconds


def make_headers(api_key: str | None) -> dict[str, str]:
    """Returns the headers of every request.

    Raises:
        ValueError: the key cannot stand in a header.
    """
    if api_key is None:
        return {}
    if not _KEY.fullmatch(api_key):
        raise ValueError("api_key is not printable ASCII without spaces around it")
    return {"Authorization": f"Bearer {api_key}"}


def explain_failure(
    error: httpx.RequestError, url: httpx.URL, timeout: httpx.Timeout
) -> ClientError:
    """Returns what a call raises that has no answer."""
    match error:
        case httpx.DecodingError():
            return UnreadableAnswer(f"the answer of {url} cannot be decoded: {error}")
        case httpx.TimeoutException():
            seconds = timeout.read if isinstance(error, httpx.ReadTimeout) else timeout.connect
            reason = f"no answer from {url} within {seconds:g} s: timeout_seconds"
        case httpx.ConnectError():
            reason = f"nothing answers at {url}: {error}"
        case _:
            reason = f"the connection to {url} broke: {str(error) or type(error).__name__}"
    return ServiceUnreachable(reason)
