"""Metrics of a real process on a port of their own; `tests/faults/test_workers.py` shares them."""

import re
import socket
from contextlib import suppress

import httpx2 as httpx

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.serving import assert_still_serving

PREDICTIONS = 'ml_decoder_request_seconds_count{method="POST",path="/predict",status="200"}'


def read_value(client: httpx.Client, sample: str) -> float:
    """Returns the value of a sample, named as in the text format; 0 without one."""
    line = re.search(rf"^{re.escape(sample)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(line[1]) if line else 0.0


def test_metrics_port_has_the_metrics_and_the_limits_of_the_service(tiny_bundle: Bundle) -> None:
    flags = ("--metrics-port", "0", "--header-timeout-seconds", "1")
    with (
        ServerProcess(*serve_command(tiny_bundle, *flags)) as server,
        server.open_client() as client,
    ):
        assert_still_serving(client)
        assert client.get("/metrics").status_code == 404
        logged = server.wait_for_line(r"metrics address=(\S+) port=(\d+)")
        address = (logged[1], int(logged[2]))
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
