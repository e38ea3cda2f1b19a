"""While the queue is full, a real server refuses predictions at their connections."""

import re
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.faulty_process import FaultyProcess
from tests.faults.test_connections import HEAD, LAST, MIB, connect, talk
from tests.faults.test_load import occupy, post, run_one_by_one
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image

EMPTY = HEAD + b"Content-Length: 0\r\n\r\n"
LAST_EMPTY = HEAD + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
# A page's request passes through the whole app.
PAGE = {"Origin": "https://a.example"}


@pytest.fixture(scope="module")
def full(open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProcess]:
    """A server with a halted engine and a full queue; the engine goes on afterwards."""
    folder: Path = tmp_path_factory.mktemp("faults")
    with run_one_by_one(open_bundle, folder, "--queue-size", "1") as (server, client, clients):
        assert_still_serving(client)
        held = occupy(server, client, clients)
        waiting = [socket.create_connection(server.find_address()) for _ in range(2)]
        for connection in waiting:
            connection.sendall(post(PHOTO, "waits"))
        # When one is refused, the other has the only place.
        (refused,), _, _ = select.select(waiting, [], [], 60)
        assert refused.recv(100).startswith(b"HTTP/1.1 429 ")
        yield server
        server.release()
        assert held.result().status_code == 200
        for connection in waiting:
            connection.close()
        assert_still_serving(client)


@pytest.fixture
def client(full: ServerProcess) -> Iterator[httpx.Client]:
    with full.open_client() as client:
        yield client


def test_refusal_equals_that_of_the_app(client: httpx.Client) -> None:
    ids = {"X-Request-ID": "abc"}
    at_once, by_app = send_image(client, headers=ids), send_image(client, headers={**ids, **PAGE})
    for response in (at_once, by_app):
        assert_problem(response, 429, "queue_full")
        assert int(response.headers["retry-after"]) > 0
    assert at_once.json() == by_app.json()
    assert set(at_once.headers) == set(by_app.headers)
    mad = [send_image(client, headers={"X-Request-ID": 'a" %b %s'}) for _ in range(2)]
    assert len({each.json()["request_id"] for each in (at_once, *mad)}) == 3


def test_refusal_keeps_the_connection_unless_the_client_closes_it(full: ServerProcess) -> None:
    assert re.findall(rb"HTTP/1.1 (\d+)", talk(full, EMPTY + LAST)) == [b"429", b"200"]
    for closing in (EMPTY.replace(b"1.1", b"1.0"), LAST_EMPTY):
        reply = talk(full, closing)
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nconnection: close\r\n" in reply


def test_requests_sent_ahead_are_each_refused(full: ServerProcess) -> None:
    through_app = EMPTY.replace(b"\r\n\r\n", b"\r\nOrigin: https://a.example\r\n\r\n")
    # A request through the app waits for the one before it; a few may.
    for first, ahead in ((EMPTY, 100), (through_app, 10)):
        reply = talk(full, first + ahead * EMPTY + LAST_EMPTY)
        assert reply.count(b"HTTP/1.1 429 ") == reply.count(b'"code":"queue_full"') == ahead + 2


def test_connection_is_closed_when_the_client_does_not_read_its_refusals(
    full: ServerProcess,
) -> None:
    before = full.read_memory()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(full.find_address())
        connection.setblocking(False)
        requests, sent = 1000 * EMPTY, 0
        while sent < 64 * MIB and select.select([], [connection], [], 2)[1]:
            try:
                sent += connection.send(requests)
            except ConnectionError:
                break
    assert sent < 64 * MIB
    assert full.read_memory() - before < 20 * MIB


def test_bodies_of_refused_requests_fill_no_memory(full: ServerProcess) -> None:
    body = HEAD + b"Content-Length: %d\r\n\r\n" % MIB + bytes(MIB)
    before = full.read_memory("VmHWM")
    with connect(full) as connection:
        for _ in range(200):
            connection.sendall(body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 429 ")
    assert full.read_memory("VmHWM") - before < 20 * MIB
