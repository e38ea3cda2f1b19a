"""A connection whose client does not read, and heads and bodies that come in pieces."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from service.http.transport.protocol import ImpatientProtocol, Refusal, make_protocol
from service.settings import Settings

pytestmark = pytest.mark.anyio


class FakeTransport(asyncio.Transport):
    """Has so much left to send each time it is asked, and nothing more at the end."""

    def __init__(self, unsent: Iterator[int]) -> None:
        super().__init__()
        self.aborted = asyncio.Event()
        self.asked_for_all = asyncio.Event()
        self.sent = b""
        self.ended = False
        self._unsent = unsent

    def get_write_buffer_size(self) -> int:
        size = next(self._unsent, None)
        if size is None:
            self.asked_for_all.set()
        return size or 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.aborted.set()

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted.is_set()


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Does not wait for the body."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def connect(
    transport: FakeTransport, seconds: float = 0.01, **settings: float
) -> ImpatientProtocol:
    config = uvicorn.Config(answer, log_config=None)
    kind = make_protocol(Settings(body_timeout_seconds=seconds, **settings), None)
    protocol = kind(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(transport)
    return protocol


async def test_client_that_takes_nothing_is_left() -> None:
    transport = FakeTransport(iter([70_000, 70_000]))
    connect(transport).pause_writing()
    async with asyncio.timeout(30):
        await transport.aborted.wait()


async def test_client_that_takes_a_little_at_a_time_is_waited_for() -> None:
    # Each size is asked for twice: at the end of one wait, and at the beginning of the next.
    transport = FakeTransport(iter([70_000, 60_000, 60_000, 50_000, 50_000, 40_000, 40_000]))
    protocol = connect(transport)
    protocol.pause_writing()
    async with asyncio.timeout(30):
        await transport.asked_for_all.wait()
    assert not transport.aborted.is_set()
    protocol.resume_writing()


async def test_client_that_has_taken_everything_may_rest() -> None:
    transport = FakeTransport(iter([70_000]))
    protocol = connect(transport)
    protocol.pause_writing()
    protocol.resume_writing()
    await asyncio.sleep(0.05)
    assert not transport.asked_for_all.is_set()
    assert not transport.aborted.is_set()


async def test_refused_connection_leaves_no_garbage() -> None:
    config = uvicorn.Config(answer, log_config=None)
    kind = make_protocol(Settings(), lambda _scope: Refusal(429, [], b"full"))
    protocol = kind(config=config, server_state=ServerState(), app_state={})
    transport = FakeTransport(iter([]))
    protocol.connection_made(transport)
    gone = weakref.ref(protocol)
    gc.disable()
    try:
        protocol.data_received(b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        protocol.connection_lost(None)
        del protocol
        assert transport.sent.startswith(b"HTTP/1.1 429 ")
        assert gone() is None
    finally:
        gc.enable()


async def answer_all(protocol: ImpatientProtocol) -> None:
    while protocol.tasks:
        await asyncio.wait(protocol.tasks)


async def test_head_behind_a_long_body_may_come_in_pieces() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport)
    protocol.data_received(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
    await answer_all(protocol)
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1

    protocol.data_received(bytes(100_000))
    protocol.data_received(bytes(200_000) + b"GET /b HTTP/1.1\r\nHo")
    protocol.data_received(b"st: x\r\n\r\n")
    await answer_all(protocol)

    assert transport.sent.count(b"HTTP/1.1 204 ") == 2
    assert b" 400 " not in transport.sent


UPLOAD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"
LAST_UPLOAD = UPLOAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


async def test_rest_of_a_body_has_more_time_than_a_head() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport, 300, header_timeout_seconds=0.01)
    protocol.data_received(UPLOAD)
    await answer_all(protocol)
    protocol.data_received(bytes(10))
    await asyncio.sleep(0.05)
    assert not transport.is_closing()

    protocol.data_received(bytes(10) + UPLOAD + bytes(20))
    await answer_all(protocol)
    assert transport.sent.count(b"HTTP/1.1 204 ") == 2
    protocol.data_received(b"GET /")
    async with asyncio.timeout(30):
        await transport.aborted.wait()


async def test_rest_of_a_body_that_stops_coming_is_not_waited_for() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport, header_timeout_seconds=300)
    protocol.data_received(UPLOAD)
    await answer_all(protocol)
    protocol.data_received(bytes(10))
    async with asyncio.timeout(30):
        await transport.aborted.wait()
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1


@pytest.mark.parametrize("rest", [bytes(10), bytes(100_000), b"no chunk\r\n\r\n"])
async def test_last_answer_does_not_close_the_connection_of_a_client_that_is_sending(
    rest: bytes,
) -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport, 300)
    protocol.data_received(LAST_UPLOAD + bytes(5))
    await answer_all(protocol)
    assert transport.ended

    protocol.data_received(rest)
    assert not transport.is_closing()
    assert transport.sent.count(b"HTTP/1.1 ") == 1


async def test_last_answer_closes_the_connection_of_a_client_that_has_sent_all() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport)
    protocol.data_received(LAST_UPLOAD + bytes(20))
    await answer_all(protocol)
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
    assert transport.is_closing()
    assert not transport.ended


async def test_server_that_stops_waits_shortly_for_a_client_that_is_sending() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport, 300)
    protocol.data_received(UPLOAD)
    await answer_all(protocol)
    protocol.shutdown()
    assert transport.ended
    assert not transport.is_closing()
    async with asyncio.timeout(30):
        await transport.aborted.wait()


def send_past_the_limit(start: bytes, piece: bytes) -> FakeTransport:
    """Sends a start and pieces of 1,000 bytes, of which the last is one too many."""
    transport = FakeTransport(iter([]))
    protocol = connect(transport)
    protocol.data_received(start)
    for _ in range(65):
        protocol.data_received(piece)
        assert not transport.sent.endswith(b"too long.")
    protocol.data_received(piece)
    return transport


@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_head_without_end_is_refused_at_its_limit(before: bytes) -> None:
    line = b"X-Filler: " + bytes(988).replace(b"\0", b"x") + b"\r\n"

    transport = send_past_the_limit(before + b"GET /b HTTP/1.1\r\nHost: x\r\n", line)

    assert transport.sent.endswith(b"The head of the request is too long.")
    assert transport.is_closing()


CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [b"0\r\nX-Endless: ", b"5;extension=", b"5\r\nhello\r\n0000"],
    ids=["trailer", "extension", "length"],
)
async def test_what_stands_beside_a_body_without_end_is_refused_at_its_limit(start: bytes) -> None:
    transport = send_past_the_limit(CHUNKED + start, 1000 * b"0")

    assert transport.sent.endswith(b"too long.")
    assert transport.ended


async def test_long_body_may_come_in_any_number_of_small_chunks() -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport)
    protocol.data_received(CHUNKED)
    for _ in range(20_000):
        protocol.data_received(b"1;some=extension\r\n")
        protocol.data_received(b"x\r\n")
    protocol.data_received(b"0\r\nX-Checksum: 1\r\n\r\n")
    await answer_all(protocol)

    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
    assert b" 400 " not in transport.sent


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_what_stands_behind_a_body_is_no_header(offer: bytes) -> None:
    transport = FakeTransport(iter([]))
    protocol = connect(transport)
    head = CHUNKED.removesuffix(b"\r\n") + offer + b"\r\n"
    protocol.data_received(head + b"5\r\nhello\r\n0\r\nX-API-Key: someone's\r\n\r\n")
    names = [name for name, _ in protocol.scope["headers"]]
    assert b"host" in names
    assert b"x-api-key" not in names
    await answer_all(protocol)
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
