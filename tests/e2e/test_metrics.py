"""Metrics of real processes: several workers that share them, and a separate port."""

import re
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2 as httpx

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo
from tests.support.threads import wait_until

PREDICTIONS = 'ml_decoder_request_seconds_count{method="POST",path="/predict",status="200"}'


def predict(client: httpx.Client) -> None:
    assert client.post("/predict", files={"image": make_photo()}).status_code == 200


def read_value(client: httpx.Client, sample: str) -> float | None:
    """Returns the value of a sample, named as in the text format; None without one."""
    text = client.get("/metrics").text
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found.group(1))


def test_any_worker_answers_for_all_and_a_killed_one_leaves_its_counts_alone(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    command = serve_command(tiny_bundle, "--label-store", "memory")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(ServerProcess(*command, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)))
            for _ in range(2)
        ]
        first, second = (stack.enter_context(worker.open_client()) for worker in workers)
        for client in (first, second, second):
            predict(client)
        for client in (first, second):
            assert read_value(client, PREDICTIONS) == 3
            assert read_value(client, "ml_decoder_decode_seconds_count") == 3
            assert read_value(client, "ml_decoder_requests_in_flight") == 1  # this scrape
        wait_until(lambda: read_value(first, "ml_decoder_ready") == 1)
        assert len(list(tmp_path.glob("gauge_livesum_*.db"))) == 2
        workers[1].send_signal(signal.SIGKILL)
        workers[1].wait()
        wait_until(lambda: len(list(tmp_path.glob("gauge_livesum_*.db"))) == 1)
        assert read_value(first, PREDICTIONS) == 3
        predict(first)
        assert read_value(first, PREDICTIONS) == 4


def test_metrics_port_has_the_metrics_and_the_limits_of_the_service(tiny_bundle: Bundle) -> None:
    flags = ("--metrics-port", "0", "--header-timeout-seconds", "1")
    with (
        ServerProcess(*serve_command(tiny_bundle, *flags)) as server,
        server.open_client() as client,
    ):
        predict(client)
        assert client.get("/metrics").status_code == 404
        found = server.wait_for_line(r"metrics address=(\S+) port=(\d+)")
        address = (found[1], int(found[2]))
        with server.connect(*address) as scraper:
            assert read_value(scraper, PREDICTIONS) == 1
            assert scraper.head("/").headers["content-length"] != "0"
            assert scraper.post("/predict").status_code == 405
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
            with socket.create_connection(address, 60) as slow:
                slow.sendall(sent)
                assert slow.recv(100) == b""
        with socket.create_connection(address, 60) as long:
            long.sendall(b"GET / HTTP/1.1\r\na: " + b"x" * 200_000)
            with suppress(ConnectionError):
                assert b" 400 " in long.recv(100)
        with socket.create_connection(address, 60):  # stays open
            assert server.stop() == 0
