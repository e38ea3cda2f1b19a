"""More connections than the process may have: idle ones are closed, health and others answered."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.faults.conftest import serve
from tests.faults.test_connections import HEAD, LAST, LIVE, connect, read_reply, talk
from tests.support.serving import assert_problem, assert_still_serving, send_image
from tests.support.threads import wait_until

# No connection is closed for its time.
PATIENT = ("--header-timeout-seconds", "300", "--body-timeout-seconds", "300")
SLOW = HEAD + b"Content-Length: 1000\r\n\r\nxyz"


@contextmanager
def hold(address: tuple[str, int], count: int, *sent: bytes) -> Iterator[list[socket.socket]]:
    """Yields connections on which this was sent; after `LIVE` they are idle."""
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address, timeout=60))
            for data in sent:
                connection.sendall(data)
                if data == LIVE:
                    read_answer(connection)
            held.append(connection)
        yield held


def read_answer(connection: socket.socket) -> None:
    answer = b""
    while b"alive" not in answer:
        answer += connection.recv(1000)


def assert_live(server: ServerProcess) -> None:
    assert talk(server, LAST).startswith(b"HTTP/1.1 200 ")


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1000) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.setblocking(True)


class LimitedFiles(ServerProcess):
    """A server that may open 300 files."""

    program = ("-c", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
               + ServerProcess.program[1])  # fmt: skip


@pytest.fixture(scope="module")
def limited(open_bundle: Bundle) -> Iterator[LimitedFiles]:
    command = serve_command(open_bundle, "--label-store", "memory", "--metrics-port", "0")
    with LimitedFiles(*command, *PATIENT) as server:
        yield server
        assert server.stop() == 0
    assert "Traceback" not in server.stderr
    assert "Too many open files" not in server.stderr


def test_others_are_served_when_idle_connections_exceed_the_file_limit(
    limited: LimitedFiles,
) -> None:
    server = limited
    with server.open_client() as client:
        address = server.wait_for_line(r"metrics address=(\S+) port=(\d+)")
        with (
            hold(server.find_address(), 250, LIVE) as first,
            hold((address[1], int(address[2])), 100, b"GET / HT"),
            hold(server.find_address(), 250) as silent,
        ):
            assert_still_serving(client)
            assert_live(server)
            wait_until(lambda: is_closed(first[0]))
            assert not is_closed(silent[-1])
        assert_still_serving(client)
        server.wait_for_line(r"WARNING .*too many connections: .* open=\d+ idle=\d+")
        assert server.stderr.count("too many connections") < 30


def test_unread_files_of_the_page_take_connections_only(limited: LimitedFiles) -> None:
    ask = b"GET /swagger-ui/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with limited.open_client() as client:
        with hold(limited.find_address(), 220, ask) as slow:
            for connection in slow:
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
            assert client.get("/page/app.js").status_code == 200
            assert_still_serving(client)
            assert_live(limited)
        assert_still_serving(client)


@pytest.fixture(scope="module")
def small(open_bundle: Bundle) -> Iterator[ServerProcess]:
    with serve(open_bundle, "--max-connections", "6", *PATIENT) as (server, _):
        yield server


def test_longest_idle_connection_is_closed_first(small: ServerProcess) -> None:
    address = small.find_address()
    with hold(address, 2, LIVE) as old, hold(address, 4, LIVE) as young:
        old[0].sendall(LIVE)
        read_answer(old[0])
        with hold(address, 1, LIVE) as new:
            wait_until(lambda: is_closed(old[1]))
            assert not any(map(is_closed, (old[0], *young, *new)))
    with small.open_client() as client:
        assert_still_serving(client)


def test_only_health_is_answered_while_all_connections_are_busy(small: ServerProcess) -> None:
    with hold(small.find_address(), 6, SLOW) as busy:
        for path in ("/livez", "/readyz", "/v2/health/live", "/metrics"):
            with small.open_client() as client:
                answer = client.get(path)
                assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        with small.open_client() as client:
            refused = assert_problem(send_image(client), 429, "too_many_connections")
            assert refused["request_id"]
            assert_problem(client.get("/labels"), 429, "too_many_connections")
        # Silent clients do not fill the places for health.
        with hold(small.find_address(), 40):
            assert_live(small)
        assert not any(map(is_closed, busy))
    with small.open_client() as client:
        wait_until(lambda: send_image(client).status_code == 200)
        assert_still_serving(client)


def test_address_has_a_limit_of_its_own(open_bundle: Bundle) -> None:
    with serve(open_bundle, "--max-connections-per-address", "3", *PATIENT) as (server, client):
        client.close()
        with hold(server.find_address(), 3, SLOW) as busy:
            with connect(server) as refused:
                wait_until(lambda: is_closed(refused))
            with socket.create_connection(
                server.find_address(), 60, source_address=("127.0.0.2", 0)
            ) as other:
                other.sendall(LAST)
                assert read_reply(other).startswith(b"HTTP/1.1 200 ")
            assert not any(map(is_closed, busy))
        with server.open_client() as good:
            assert_still_serving(good)
