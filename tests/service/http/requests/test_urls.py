"""Images by URL: from the public internet only, by the address that was checked, within limits."""

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any
from unittest.mock import Mock

import httpcore2 as httpcore
import pytest

from service.errors import BodyTooLarge, OriginTimeout, QueueFull, UrlNotUsable
from service.http.requests.body import BodyBudget, Reservation
from service.http.requests.urls import MAX_REDIRECTS, Fetcher, Resolve, is_public
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, assert_still_serving, serve_app

PHOTO = make_photo()
PUBLIC = "93.184.216.34"
MAX_BYTES = 10_000
CONTEXT = httpcore.default_ssl_context()

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def certificates(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The system's certificates, read once for all tests."""
    read = Mock(return_value=CONTEXT)
    monkeypatch.setattr(httpcore, "default_ssl_context", read)
    return read


def reply(body: bytes, status: str = "200 OK", **headers: str) -> list[bytes]:
    """Returns an HTTP answer, in two pieces."""
    fields = {"content-length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return [f"HTTP/1.1 {status}\r\n{lines}\r\n".encode(), body]


def redirect(url: str, status: str = "302 Found") -> list[bytes]:
    return reply(b"", status, location=url)


class FakeNetwork(httpcore.AsyncNetworkBackend):
    """Names with their addresses, addresses with their answers; records the connections."""

    def __init__(self, names: dict[str, list[str]], answers: dict[str, list[Any]]) -> None:
        self.names = names
        self.answers = answers
        self.called: list[tuple[str, int]] = []
        self.connected = asyncio.Event()
        self.look_ups: dict[str, int] = defaultdict(int)

    async def resolve(self, host: str, _port: int) -> list[str]:
        self.look_ups[host] += 1
        if host not in self.names:
            raise OSError("no such name")
        return self.names[host]

    async def connect_tcp(
        self, host: str, port: int, *_options: Any
    ) -> httpcore.AsyncNetworkStream:
        self.called.append((host, port))
        self.connected.set()
        return _Stream([*self.answers[host].pop(0)])


class _Stream(httpcore.AsyncMockStream):
    """Pieces of bytes; a number instead of a piece never ends."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._buffer and not isinstance(self._buffer[0], bytes):
            await asyncio.Event().wait()
        return await super().read(max_bytes, timeout)


def make_fetcher(
    network: FakeNetwork | None = None,
    resolve: Resolve | None = None,
    *,
    seconds: float = 30.0,
    max_fetches: int = 4,
) -> Fetcher:
    settings = Settings(
        max_body_bytes=MAX_BYTES, url_timeout_seconds=seconds, queue_size=max_fetches
    )
    return Fetcher(settings, network, resolve or (network and network.resolve))


def fetch(fetcher: Fetcher, url: str) -> Coroutine[Any, Any, bytes]:
    """Fetches for a request with room for far more bytes."""
    return fetcher.fetch(url, Reservation(BodyBudget(Settings())))


async def refuse(
    network: FakeNetwork, error: type[Exception] = UrlNotUsable, **options: Any
) -> None:
    """Checks that the fetch of `https://a.example/` fails."""
    with pytest.raises(error):
        await fetch(make_fetcher(network, **options), "https://a.example/")


def serving(*answers: Any, address: str = PUBLIC) -> FakeNetwork:
    return FakeNetwork({"a.example": [address]}, {address: list(answers)})


async def test_image_comes_from_the_address_that_was_checked() -> None:
    network = serving(reply(PHOTO))
    assert await fetch(make_fetcher(network), "https://a.example/cat.png?size=2#top") == PHOTO
    assert network.called == [(PUBLIC, 443)]
    assert network.look_ups == {"a.example": 1}


@pytest.mark.parametrize(
    "url",
    [
        *("http://a.example/", "file:///etc/passwd", "ftp://a.example/", "gopher://a.example/"),
        *("//a.example/", "a.example", "", "https://", "https:///path", "https://[::1"),
        *("https://a.example:8443/", "https://a.example:x/", "https://a.example:99999/"),
        *("https://user@a.example/", "https://user:word@a.example/", "https://a.example/ x"),
        *("https://a.example/\r\nHost: b", "https://\u0430.example/"),
        "https://a.example/" + "x" * 2000,
    ],
)
async def test_other_urls_than_plain_https_are_refused_before_any_lookup(url: str) -> None:
    network = serving(reply(PHOTO))
    with pytest.raises(UrlNotUsable):
        await fetch(make_fetcher(network), url)
    assert network.look_ups == {}
    assert network.called == []


NOT_PUBLIC = [
    "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254",
    "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "192.0.2.1", "198.18.0.1",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::1", "64:ff9b::7f00:1",
    "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2001:0:a00:1::", "::a00:1", "fec0::1", "junk", "",
]  # fmt: skip
ALL_PUBLIC = [PUBLIC, "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", [*NOT_PUBLIC, *ALL_PUBLIC])
def test_address_is_public_unless_it_or_one_in_it_is_inside_a_network(address: str) -> None:
    assert is_public(address) == (address in ALL_PUBLIC)


@pytest.mark.parametrize("addresses", [["10.0.0.1"], [PUBLIC, "::1"], ["::1", PUBLIC], []])
async def test_name_that_leads_inside_is_refused_without_a_connection(addresses: list[str]) -> None:
    network = FakeNetwork({"a.example": addresses}, {})
    await refuse(network)
    assert network.called == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "localhost",
     "[::ffff:127.0.0.1]", "169.254.169.254", "0"],
)  # fmt: skip
async def test_every_spelling_of_this_machine_is_refused(host: str) -> None:
    # The system's own resolver reads these spellings.
    with pytest.raises(UrlNotUsable):
        await fetch(make_fetcher(), f"https://{host}/")


async def test_redirect_is_followed_and_checked_like_the_first_url() -> None:
    network = serving(redirect("https://b.example/x", "301 Moved"))
    network.names["b.example"] = ["8.8.8.8"]
    network.answers["8.8.8.8"] = [redirect("/y", "307 Temporary Redirect"), reply(PHOTO)]
    assert await fetch(make_fetcher(network), "https://a.example/") == PHOTO
    assert network.called == [(PUBLIC, 443), ("8.8.8.8", 443), ("8.8.8.8", 443)]


@pytest.mark.parametrize(
    "target",
    ["https://inside.example/", "http://a.example/", "file:///etc/passwd", "https://127.0.0.1/",
     "https://a.example:22/", "//inside.example/", "", "https://[", "https://user@a.example/"],
)  # fmt: skip
async def test_redirect_to_a_forbidden_target_is_refused(target: str) -> None:
    network = serving(*[redirect(target)] * (MAX_REDIRECTS + 1))
    network.names |= {"inside.example": ["10.0.0.1"], "127.0.0.1": ["127.0.0.1"]}
    await refuse(network)
    assert {address for address, _ in network.called} == {PUBLIC}


async def test_endless_redirects_end() -> None:
    network = serving(*[redirect("https://a.example/")] * 100)
    await refuse(network)
    assert len(network.called) == MAX_REDIRECTS + 1


async def test_name_that_changes_its_address_is_looked_up_for_every_connection() -> None:
    network = serving(redirect("https://a.example/again"))

    async def rebind(host: str, port: int) -> list[str]:
        addresses = await network.resolve(host, port)
        network.names["a.example"] = ["127.0.0.1"]
        return addresses

    await refuse(network, resolve=rebind)
    assert network.called == [(PUBLIC, 443)]


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"no", "404 Not Found"),
        reply(b"no", "500 Internal Server Error"),
        reply(b"", "204 No Content"),
        reply(PHOTO, content_encoding="gzip"),
        [b"SSH-2.0-OpenSSH_9.6\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"],
        [b""],
    ],
)
async def test_origin_without_an_image_is_refused(answer: list[bytes]) -> None:
    await refuse(serving(answer))


@pytest.mark.parametrize(
    "answer",
    [
        reply(bytes(MAX_BYTES + 1)),
        [b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", *[bytes(1000)] * 20],
    ],
    ids=["declared", "declared and never sent", "undeclared"],
)
async def test_huge_image_is_refused_before_its_end(answer: list[bytes]) -> None:
    await refuse(serving(answer), BodyTooLarge)


async def test_slow_origin_is_given_up() -> None:
    answer = [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", b"abc", 0]
    await refuse(serving(answer), OriginTimeout, seconds=0.05)


async def test_fetches_beyond_the_limit_are_refused(certificates: Mock) -> None:
    network = serving([0], reply(PHOTO))
    fetcher = make_fetcher(network, max_fetches=1)
    first = asyncio.create_task(fetch(fetcher, "https://a.example/"))
    await network.connected.wait()
    with pytest.raises(QueueFull):
        await fetch(fetcher, "https://a.example/")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await fetch(fetcher, "https://a.example/") == PHOTO
    certificates.assert_called_once_with()


async def test_name_server_that_does_not_answer_blocks_no_other_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(30))
    fetcher = make_fetcher(seconds=0.01, max_fetches=64)
    try:
        # As many as there are threads for everything else at the most.
        fetches = [fetch(fetcher, f"https://{name}.example/") for name in range(32)]
        failures = await asyncio.gather(*fetches, return_exceptions=True)
        assert {type(failure) for failure in failures} == {OriginTimeout}
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(str, "others") == "others"
    finally:
        answers.set()


def test_route_takes_urls_only_where_it_is_set_to(tiny_bundle: Any) -> None:
    body = {"url": "https://a.example/cat.png", "top_k": 2}
    with serve_app(tiny_bundle.path) as client:
        assert_problem(client.post("/predict", json=body), 422, "url_input_off")
    with serve_app(tiny_bundle.path, url_input=True) as client:
        state: Any = client.app.state  # type: ignore[attr-defined]
        state.fetcher = make_fetcher(serving(reply(PHOTO), reply(PHOTO)))
        free = state.budget.free_bytes
        answer = client.post("/predict", json=body)
        assert len(answer.json()["labels"]) == 2, answer.text
        state.budget.free_bytes = len(PHOTO)  # others hold the rest
        assert_problem(client.post("/predict", json=body), 429, "queue_full")
        state.budget.free_bytes += free - len(PHOTO)
        assert state.budget.free_bytes == free
        both = client.post("/predict", json={**body, "image": "AAAA"})
        assert_problem(both, 400, "malformed_body")
        assert_problem(client.post("/predict", json={"url": 5}), 400, "malformed_body")
        batch = client.post("/predict/batch", json={"url": "https://a.example/"})
        assert_problem(batch, 422, "unknown_field")
        assert_still_serving(client)
