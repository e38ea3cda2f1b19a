"""Clients that send slowly, too much or in pieces, do not read, or are still sending at the end."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from service.errors import StartError
from service.process.protocol.connection import LimitedProtocol, Refusal, Refuse
from service.process.protocol.open_connections import Connections
from service.settings import Settings

pytestmark = pytest.mark.anyio


class FakeTransport(asyncio.Transport):
    """Records calls; its write buffer has each of the `unsent` sizes in turn, then 0."""

    def __init__(self, *unsent: int) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.sent = b""
        self.ended = asyncio.Event()
        self.asked_for_all = asyncio.Event()
        self._unsent = iter(unsent)

    def get_write_buffer_size(self) -> int:
        size = next(self._unsent, None)
        if size is None:
            self.asked_for_all.set()
        return size or 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(f"write {bytes(data).decode()}")
        self.sent += data

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def abort(self) -> None:
        self.calls.append("abort")
        self.ended.set()

    def close(self) -> None:
        self.calls.append("close")
        self.ended.set()

    def is_closing(self) -> bool:
        return self.ended.is_set()

    async def wait_for_end(self) -> None:
        async with asyncio.timeout(30):
            await self.ended.wait()


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answers before the body has come."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def read_and_answer(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"read"})


def connect(
    body_timeout_seconds: float = 0.01,
    *,
    app: ASGIApp = answer,
    unsent: Sequence[int] = (),
    refuse: Refuse = lambda _scope: None,
    **settings: float,
) -> tuple[FakeTransport, LimitedProtocol]:
    given = Settings(body_timeout_seconds=body_timeout_seconds, **settings)
    config = uvicorn.Config(app, log_config=None)
    protocol = LimitedProtocol(
        given, Connections(given), refuse, config=config, server_state=ServerState(), app_state={}
    )
    transport = FakeTransport(*unsent)
    protocol.connection_made(transport)
    return transport, protocol


async def receive_and_answer(protocol: httptools_impl.HttpToolsProtocol, *data: bytes) -> None:
    for piece in data:
        protocol.data_received(piece)
    while protocol.tasks:
        await asyncio.wait(protocol.tasks)


# Names of uvicorn that `connection.py` uses or overrides; uvicorn documents none of them.
PROTOCOL_NAMES = """
    _start_asgi_task _unset_keepalive_if_required client connection_lost connection_made cycle
    data_received flow headers loop on_body on_header on_headers_complete on_message_begin
    on_message_complete on_response_complete parser pause_writing pipeline resume_writing scope
    send_400_response server_state shutdown timeout_keep_alive timeout_keep_alive_handler
    timeout_keep_alive_task transport
"""
CYCLE_NAMES = """
    disconnected keep_alive message_event on_response response_complete response_started scope
"""


async def test_uvicorn_has_the_private_names_that_the_protocol_uses() -> None:
    config = uvicorn.Config(answer, log_config=None)
    protocol = httptools_impl.HttpToolsProtocol(config, ServerState(), {})
    transport = FakeTransport()
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    names = {"STATUS_LINE": httptools_impl, "write_paused": protocol.flow}
    names |= dict.fromkeys(PROTOCOL_NAMES.split(), protocol)
    names |= dict.fromkeys(CYCLE_NAMES.split(), protocol.cycle)
    names |= {"default_headers": protocol.server_state}
    missing = [name for name, owner in names.items() if not hasattr(owner, name)]
    assert not missing, (
        f"uvicorn {uvicorn.__version__} lacks {missing}: see service/process/protocol"
    )
    await receive_and_answer(protocol)


@pytest.mark.parametrize(
    ("method", "expect", "writes"),
    [("POST", "", 1), ("HEAD", "", 1), ("POST", "Expect: 100-continue\r\n", 2)],
)
async def test_one_write_has_head_and_body_of_an_answer(
    method: str, expect: str, writes: int
) -> None:
    # A process that is killed between two writes loses an answer whose head a proxy passed on.
    transport, protocol = connect(app=read_and_answer)
    head = f"{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n{expect}\r\n"
    for answers in (1, 2):
        await receive_and_answer(protocol, head.encode(), b"hi")
        assert len(transport.calls) == answers * writes
        assert transport.sent.count(b"HTTP/1.1 200 ") == answers
        assert transport.sent.endswith(b"\r\n\r\n" if method == "HEAD" else b"\r\n\r\nread")


async def test_limit_above_the_files_of_the_process_stops_the_start() -> None:
    with pytest.raises(StartError, match="raise `ulimit -n`"):
        Connections(Settings(max_connections=2**40))


@pytest.mark.parametrize("unsent", [[70_000, 70_000], [70_000, 68_000, 68_000, 67_000]])
async def test_connection_is_aborted_when_the_client_reads_less_than_16_kib_a_second(
    unsent: list[int],
) -> None:
    transport, protocol = connect(0.1, unsent=unsent)
    protocol.pause_writing()
    await transport.wait_for_end()
    assert not transport.asked_for_all.is_set()


async def test_connection_is_aborted_when_the_client_reads_no_answer_after_the_close() -> None:
    transport, protocol = connect(unsent=[1000, 1000, 1000])
    protocol.timeout_keep_alive_handler()
    assert transport.calls == ["close"]
    transport.ended.clear()
    await transport.wait_for_end()
    assert transport.calls == ["close", "abort"]


async def test_connection_stays_when_the_client_reads_slowly() -> None:
    # Each size is read twice: at the end of one wait and at the beginning of the next.
    transport, protocol = connect(unsent=[70_000, 60_000, 60_000, 50_000, 50_000, 40_000, 40_000])
    protocol.pause_writing()
    async with asyncio.timeout(30):
        await transport.asked_for_all.wait()
    assert not transport.is_closing()
    protocol.resume_writing()


async def test_connection_stays_when_the_client_has_read_everything() -> None:
    transport, protocol = connect(unsent=[70_000])
    protocol.pause_writing()
    protocol.resume_writing()
    await asyncio.sleep(0.05)
    assert not transport.asked_for_all.is_set()
    assert not transport.is_closing()


async def test_refused_connection_leaves_no_garbage() -> None:
    transport, protocol = connect(refuse=lambda _scope: Refusal(429, [], b"full"))
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


async def test_head_after_a_long_body_may_come_in_pieces() -> None:
    transport, protocol = connect()
    await receive_and_answer(
        protocol, b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
    )
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1

    pieces = bytes(100_000), bytes(200_000) + b"GET /b HTTP/1.1\r\nHo", b"st: x\r\n\r\n"
    await receive_and_answer(protocol, *pieces)

    assert transport.sent.count(b"HTTP/1.1 204 ") == 2
    assert b" 400 " not in transport.sent


UPLOAD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"
LAST_UPLOAD = UPLOAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


async def test_rest_of_a_body_has_more_time_than_a_head() -> None:
    transport, protocol = connect(300, header_timeout_seconds=0.01)
    await receive_and_answer(protocol, UPLOAD)
    protocol.data_received(bytes(10))
    await asyncio.sleep(0.05)
    assert not transport.is_closing()

    await receive_and_answer(protocol, bytes(10) + UPLOAD + bytes(20))
    assert transport.sent.count(b"HTTP/1.1 204 ") == 2
    protocol.data_received(b"GET /")
    await transport.wait_for_end()


async def test_connection_is_closed_when_the_rest_of_a_body_stops() -> None:
    transport, protocol = connect(header_timeout_seconds=300)
    await receive_and_answer(protocol, UPLOAD)
    protocol.data_received(bytes(10))
    await transport.wait_for_end()
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1


async def test_last_answer_closes_the_connection_when_the_client_has_sent_all() -> None:
    transport, protocol = connect()
    await receive_and_answer(protocol, LAST_UPLOAD + bytes(20))
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
    assert transport.is_closing()
    assert "write_eof" not in transport.calls


async def test_shutdown_lingers_while_the_client_sends_and_ends_with_the_connection() -> None:
    transport, protocol = connect(0.01)
    await receive_and_answer(protocol, UPLOAD)
    protocol.shutdown()
    assert "write_eof" in transport.calls
    assert not transport.is_closing()
    protocol.connection_lost(None)
    await asyncio.sleep(0.05)
    assert not transport.is_closing()


def send_past_the_limit(start: bytes, piece: bytes) -> FakeTransport:
    """Sends a start and pieces of 1,000 bytes, of which the last is one too many."""
    transport, protocol = connect()
    protocol.data_received(start)
    for _ in range(65):
        protocol.data_received(piece)
        assert not transport.sent.endswith(b"too long.")
    protocol.data_received(piece)
    return transport


@pytest.mark.parametrize("before", [b"", b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_endless_head_is_refused_at_its_limit(before: bytes) -> None:
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
async def test_endless_trailer_extension_or_length_is_refused_at_its_limit(start: bytes) -> None:
    transport = send_past_the_limit(CHUNKED + start, 1000 * b"0")

    assert transport.sent.endswith(b"too long.")
    assert "write_eof" in transport.calls


async def test_long_body_may_come_in_many_small_chunks() -> None:
    transport, protocol = connect()
    chunks = [b"1;some=extension\r\n", b"x\r\n"] * 20_000
    await receive_and_answer(protocol, CHUNKED, *chunks, b"0\r\nX-Checksum: 1\r\n\r\n")

    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
    assert b" 400 " not in transport.sent


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_trailer_is_not_a_header(offer: bytes) -> None:
    transport, protocol = connect()
    head = CHUNKED.removesuffix(b"\r\n") + offer + b"\r\n"
    protocol.data_received(head + b"5\r\nhello\r\n0\r\nX-API-Key: someone's\r\n\r\n")
    names = [name for name, _ in protocol.scope["headers"]]
    assert b"host" in names
    assert b"x-api-key" not in names
    await receive_and_answer(protocol)
    assert transport.sent.count(b"HTTP/1.1 204 ") == 1
