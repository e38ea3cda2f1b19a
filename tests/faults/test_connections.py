"""Connections that send too much, too slowly, or nonsense: closed, while others are served."""

import re
import socket
from contextlib import suppress

import httpx2 as httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import MAX_BODY_BYTES
from tests.support.serving import PHOTO, assert_still_serving

# After every test a good request has to be answered.
pytestmark = pytest.mark.usefixtures("client")

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
ENDLESS = HEAD + b"Connection: close\r\nContent-Length: 1000000000000\r\n\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
MIB = 1024 * 1024


def connect(server: ServerProcess) -> socket.socket:
    return socket.create_connection(server.find_address(), timeout=30)


def read_reply(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def talk(server: ServerProcess, *pieces: bytes) -> bytes:
    """Sends bytes and reads until the server closes the connection; empty if it resets it."""
    with connect(server) as connection, suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
        return read_reply(connection)
    return b""


def ask_raw(server: ServerProcess, request: bytes) -> bytes:
    """Sends bytes and returns head and body of the answer."""
    with connect(server) as connection:
        connection.sendall(request)
        reply = connection.makefile("rb")
        head = b"".join(iter(reply.readline, b"\r\n"))
        length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
        return head + reply.read(int(length[1]) if length else -1)


def test_endless_chunked_body_is_refused_and_fills_no_memory(server: ServerProcess) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    before = server.read_memory("VmHWM")
    for _ in range(20):
        with connect(server) as connection:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(MAX_BODY_BYTES // 0x10000 + 1):
                connection.sendall(chunk)
            assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert server.read_memory("VmHWM") - before < 20 * MIB


@pytest.mark.parametrize(
    ("target", "kind", "status"),
    [
        (b"/predict?top_k=0", b"image/png", b"422"),
        (b"/predict", b"video/mp4", b"415"),
        (b"/predict", b"image/png", b"413"),
        (b"/nowhere", b"image/png", b"404"),
    ],
)
def test_early_last_answer_arrives_when_the_client_sends_all_before_it_reads(
    server: ServerProcess, target: bytes, kind: bytes, status: bytes
) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %b\r\n"
    body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (8 * MIB, bytes(8 * MIB))
    for _ in range(3):
        assert talk(server, head % (target, kind) + body).startswith(b"HTTP/1.1 %b " % status)


def send_until_cut_off(connection: socket.socket) -> None:
    while True:
        connection.sendall(bytes(0x10000))


def test_connection_is_aborted_when_the_client_sends_on_after_its_last_answer(
    server: ServerProcess,
) -> None:
    with connect(server) as connection:
        connection.sendall(ENDLESS)
        reply = read_reply(connection)
        assert reply.startswith(b"HTTP/1.1 413 ")
        assert b"body_too_large" in reply
        with pytest.raises(ConnectionError):
            send_until_cut_off(connection)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
    ids=["two lengths", "both", "negative", "overflow", "huge chunk", "no chunk"],
)
def test_contradicting_lengths_are_refused(server: ServerProcess, headers: bytes) -> None:
    reply = ask_raw(server, HEAD + headers)
    assert reply[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413"), reply


def test_body_longer_than_its_length_is_not_a_second_request(server: ServerProcess) -> None:
    length = f"Content-Length: {len(PHOTO)}\r\n\r\n".encode()
    reply = talk(server, HEAD + length + PHOTO + b"x" * 2000)
    assert reply.count(b"HTTP/1.1 200") <= 1
    assert b" 400 " in reply or reply.count(b"HTTP/1.1") == 1


def test_stalled_body_is_answered_408_and_closed(
    server: ServerProcess, client: httpx.Client
) -> None:
    with connect(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\nxyz")
        assert_still_serving(client)  # meanwhile
        reply = read_reply(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in reply


def test_unread_answer_is_cut_off_although_the_kernel_has_room_for_it(
    server: ServerProcess,
) -> None:
    path = "/swagger-ui/swagger-ui-bundle.js"  # 1.5 MB
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.settimeout(30)
        reader.connect(server.find_address())
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Request-ID: unread\r\n\r\n".encode())
        server.wait_for_line("request_id=unread")  # the body's timeout has passed
        received = 0
        with suppress(ConnectionError):
            while data := reader.recv(65536):
                received += len(data)
    assert 0 < received < 1_000_000


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nHost: "])
def test_stalled_headers_close_the_connection(server: ServerProcess, head: bytes) -> None:
    assert talk(server, head) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: %d\r\n\r\n%b" % (len(PHOTO), PHOTO),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(PHOTO), PHOTO),
    ],
    ids=["length", "chunks"],
)
def test_request_with_an_upgrade_keeps_its_body(server: ServerProcess, body: bytes) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    request = HEAD + offer + body
    for pieces in ([request * 3], [request[:400], request[400:], request + request]):
        reply = talk(server, *pieces, LAST)
        assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200"] * 4
        assert reply.count(b'"labels"') == 3


def test_request_with_an_upgrade_and_no_body_is_answered(server: ServerProcess) -> None:
    offer = HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    reply = talk(server, 2 * offer + LAST)
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"400", b"400", b"200"]


@pytest.mark.parametrize("rest", [b"\r\n", LIVE, b"junk"])
def test_bytes_after_the_last_request_do_not_spoil_its_answer(
    server: ServerProcess, rest: bytes
) -> None:
    length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(PHOTO)
    reply = ask_raw(server, HEAD + length + PHOTO + rest)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b'"labels"' in reply


def test_body_of_a_request_with_an_upgrade_is_not_a_second_request(server: ServerProcess) -> None:
    offer = HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    request = offer + b"Content-Length: %d\r\n\r\n" % len(LIVE) + LIVE
    assert ask_raw(server, request).startswith(b"HTTP/1.1 400 ")
    assert talk(server, request + LAST).count(b"HTTP/1.1 ") == 2


def test_connection_is_closed_when_too_many_requests_are_sent_ahead(server: ServerProcess) -> None:
    for count, kept in ((10, True), (10_000, False)):
        reply = talk(server, count * LIVE + LAST)
        assert (reply.count(b"HTTP/1.1 200 ") == count + 1) is kept
