"""Fetches the image of a URL that a client sent, from the public internet only.

Each host is resolved once, all its addresses are checked, and the connection goes to an address
that was checked, redirects included. Errors say nothing of the target: they would let clients map
a network that they cannot reach.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urljoin, urlsplit

import httpcore2 as httpcore

from service.errors import BodyTooLarge, OriginTimeout, QueueFull, UrlNotUsable
from service.http.requests.body import Reservation
from service.settings import Settings

MAX_REDIRECTS = 3
_MAX_CHARACTERS = 2000
_PORT = 443
_OK = 200
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_URL_CHARACTERS = re.compile(r"[\x21-\x7e]+")
_HEADERS = (
    (b"Accept", b"image/*"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"ml-decoder-serve"),
)
# All public IPv6 addresses. `ipaddress` calls more public, such as the prefix by which a network
# translates to its own IPv4 addresses (RFC 8215).
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
# IPv6 addresses that carry an IPv4 one in their last 32 bits (RFC 6052, section 2.1).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[list[str]]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Fetcher:
    """Fetches images by public https URLs; belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        network: httpcore.AsyncNetworkBackend | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """`resolve` returns the IP addresses of a host and port; None asks the system."""
        self._max_bytes = settings.max_body_bytes
        self._timeout_seconds = settings.url_timeout_seconds
        self._free = settings.queue_size
        # Reading the system's certificates takes as long as several predictions.
        self._context = httpcore.default_ssl_context()
        lookup = resolve or _make_resolver(self._free)
        self._network = _PublicNetwork(network or httpcore.AnyIOBackend(), lookup)

    async def fetch(self, url: str, reserved: Reservation) -> bytes:
        """Returns the bytes, counted in `reserved`. Raises UrlError, BodyTooLarge, QueueFull."""
        if self._free == 0:
            raise QueueFull("too many fetches")
        self._free -= 1
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._follow(url, reserved)
        except TimeoutError as error:
            raise OriginTimeout(self._timeout_seconds) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            raise UrlNotUsable from error
        finally:
            self._free += 1

    async def _follow(self, url: str, reserved: Reservation) -> bytes:
        # A new pool for each fetch: a kept connection's address was checked too long ago.
        connections = httpcore.AsyncConnectionPool(self._context, network_backend=self._network)
        async with connections as pool:
            for _ in range(1 + MAX_REDIRECTS):
                target = parse_url(url)
                async with pool.stream("GET", target, headers=_HEADERS) as response:
                    headers = {name.lower(): value for name, value in response.headers}
                    if response.status in _REDIRECTS:
                        url = urljoin(url, headers.get(b"location", b"").decode("latin-1"))
                        continue
                    if response.status != _OK or b"content-encoding" in headers:
                        raise UrlNotUsable
                    self._check_size(int(headers.get(b"content-length", b"0")))
                    body = bytearray()
                    async for chunk in response.aiter_stream():
                        body += chunk
                        self._check_size(len(body))
                        reserved.grow(len(chunk))
                    return bytes(body)
        raise UrlNotUsable

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise BodyTooLarge("The image behind the URL", self._max_bytes)


class _PublicNetwork(httpcore.AsyncNetworkBackend):
    def __init__(self, network: httpcore.AsyncNetworkBackend, resolve: Resolve) -> None:
        self._network = network
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first address of a host all of whose addresses are public."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(is_public(address) for address in addresses):
            raise UrlNotUsable
        # The address, not the name: a second look-up could give another one.
        return await self._network.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )


def parse_url(url: str) -> httpcore.URL:
    """Returns the parts of an https URL to port 443 without user; others raise UrlNotUsable."""
    if len(url) > _MAX_CHARACTERS or not _URL_CHARACTERS.fullmatch(url):
        raise UrlNotUsable
    try:
        parts = urlsplit(url)
        is_plain = "@" not in parts.netloc and parts.port in (None, _PORT)
    except ValueError as error:
        raise UrlNotUsable from error
    if parts.scheme != "https" or not parts.hostname or not is_plain:
        raise UrlNotUsable
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return httpcore.URL(scheme="https", host=parts.hostname, port=_PORT, target=target)


def is_public(address: str) -> bool:
    """Returns whether an IP address, and any address embedded in it, is public."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(
        (isinstance(part, ipaddress.IPv4Address) or part in _PUBLIC_IPV6)
        and part.is_global
        and not part.is_multicast
        for part in _unwrap(parsed)
    )


def _unwrap(address: Address) -> list[Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    carried: list[Address] = [address, *(address.teredo or ())]
    if address.sixtofour is not None:
        carried.append(address.sixtofour)
    return carried


def _make_resolver(max_lookups: int) -> Resolve:
    """Returns the system's look-up, in threads of its own: a dead name server blocks them."""
    threads = ThreadPoolExecutor(max_lookups, thread_name_prefix="resolver")

    async def resolve(host: str, port: int) -> list[str]:
        lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        records = await asyncio.get_running_loop().run_in_executor(threads, lookup)
        return [str(address[0]) for *_, address in records]

    return resolve
