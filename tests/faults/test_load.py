"""Overload, disconnects, deadlines and shutdown under load."""

import select
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve
from tests.faults.faulty_process import FaultyProcess
from tests.faults.faulty_server import make_fault
from tests.faults.test_connections import HEAD, read_reply
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image
from tests.support.threads import wait_until

Running = tuple[FaultyProcess, httpx.Client, ThreadPoolExecutor]
QUEUE_SIZE = 4
# One thread, so that one photo blocks the whole engine.
ONE_BY_ONE = ("--queue-size", str(QUEUE_SIZE), "--intra-op-threads", "1", "--max-batch-size", "1")


@contextmanager
def run_one_by_one(
    bundle: Bundle, folder: Path, *flags: str, at_once: int = 1
) -> Iterator[Running]:
    """Yields a server, a client, and threads for `at_once` requests at the same time."""
    with (
        FaultyProcess(bundle, folder, *ONE_BY_ONE, *flags) as server,
        server.open_client() as client,
        ThreadPoolExecutor(at_once) as clients,
    ):
        yield server, client, clients
    assert "Traceback" not in server.stderr


def occupy(
    server: FaultyProcess, client: httpx.Client, clients: ThreadPoolExecutor, **asked: Any
) -> Future[httpx.Response]:
    """Sends a photo that blocks the engine; returns when it does."""
    # The next such line: those of earlier photos may be read only now.
    holds = server.stderr.count("run holds")
    held = clients.submit(send_image, client, make_fault("HOLD"), **asked)
    server.wait_for_line(rf"(?s)(run holds.*?){{{holds + 1}}}")
    return held


def post(photo: bytes, request_id: str) -> bytes:
    """Returns a whole request as it goes over the wire."""
    more = f"Content-Length: {len(photo)}\r\nX-Request-ID: {request_id}\r\n\r\n"
    return HEAD + more.encode() + photo


@pytest.fixture(scope="module")
def shared(open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with run_one_by_one(open_bundle, tmp_path_factory.mktemp("faults"), at_once=2) as running:
        yield running


@pytest.fixture
def running(shared: Running) -> Iterator[Running]:
    """A server that blocks on the next photo of `occupy`; afterwards it has to answer."""
    server, client, _ = shared
    server.block()
    yield shared
    assert_still_serving(client)


def test_client_that_leaves_the_queue_frees_its_place(running: Running) -> None:
    server, client, clients = running
    held = occupy(server, client, clients)
    runs = server.count_runs()
    asking = [socket.create_connection(server.find_address()) for _ in range(QUEUE_SIZE + 1)]
    for number, connection in enumerate(asking):
        connection.sendall(post(PHOTO, f"asks-{number}"))
    # One too many: as soon as it is refused, all others are in the queue.
    (surplus,), _, _ = select.select(asking, [], [], 60)
    assert surplus.recv(100).startswith(b"HTTP/1.1 429 ")
    for number, connection in enumerate(asking):
        connection.close()
        if connection is not surplus:
            server.wait_for_line(rf"(?m)^(?=.*\b499\b).*asks-{number}\b")
    taken = clients.submit(send_image, client)
    server.release()
    assert [held.result().status_code, taken.result().status_code] == [200, 200]
    server.assert_runs(runs + 1)  # those that left were never run


def test_client_that_has_sent_ahead_and_leaves_frees_the_place_of_the_request_in_hand(
    running: Running,
) -> None:
    server, client, clients = running
    held = occupy(server, client, clients)
    runs = server.count_runs()
    with socket.create_connection(server.find_address()) as connection:
        connection.sendall(post(PHOTO, "first") + post(PHOTO, "second"))
        wait_until(lambda: "ml_decoder_queue_size 1.0" in client.get("/metrics").text)
    server.wait_for_line(r"(?m)^(?=.*\b499\b).*first\b")
    server.release()
    assert held.result().status_code == 200
    assert_still_serving(client)
    server.assert_runs(runs + 1)


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_finishes_requests_and_refuses_others_and_a_second_one_fails_them(
    open_bundle: Bundle, tmp_path: Path, signals: int
) -> None:
    with run_one_by_one(open_bundle, tmp_path) as (server, client, clients):
        held = occupy(server, client, clients)
        server.send_signal(signal.SIGTERM)
        server.wait_for_line("draining")
        assert client.get("/livez").status_code == 200
        for response in (client.get("/readyz"), send_image(client)):
            assert_problem(response, 503, "draining")
            assert int(response.headers["retry-after"]) > 0
        if signals == 1:
            server.release()
            assert held.result().status_code == 200
        else:
            server.send_signal(signal.SIGTERM)
            assert_problem(held.result(), 503, "draining")
        assert server.wait() == 0


def begin_upload(server: ServerProcess) -> socket.socket:
    """Sends the head of a prediction and little of its body; returns once both are read."""
    connection = socket.create_connection(server.find_address(), timeout=60)
    # The server has read the head if it answers 100.
    connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 9000\r\n\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    connection.sendall(b"abc")
    return connection


@pytest.mark.parametrize("drain_seconds", [1, 300])
def test_upload_that_is_not_complete_in_time_is_refused_and_a_second_sigterm_shortens_it(
    open_bundle: Bundle, drain_seconds: int
) -> None:
    limits = ("--drain-seconds", str(drain_seconds), "--body-timeout-seconds", "300")
    with serve(open_bundle, *limits) as (server, client):
        assert_still_serving(client)
        connection = begin_upload(server)
        server.send_signal(signal.SIGTERM)
        server.wait_for_line("draining")
        if drain_seconds > 1:
            server.send_signal(signal.SIGTERM)
        with connection:
            answer = read_reply(connection).decode().lower()
        assert server.wait() == 0
        assert answer.startswith("http/1.1 503 ")
        for part in ("application/problem+json", "x-request-id: ", "retry-after: ", '"draining"'):
            assert part in answer
        assert "Traceback" not in server.stderr
        assert "status=503" in server.stderr
