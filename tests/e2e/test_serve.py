"""The server as a user starts it, without torch, timm and onnx."""

import os
import signal
import socket
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.serving import assert_still_serving, labels_of, send_image
from tests.support.threads import needs_policies


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[ServerProcess]:
    with ServerProcess(*serve_command(tiny_bundle)) as server:
        yield server


def test_photo_gets_labels_without_torch_timm_and_onnx(server: ServerProcess) -> None:
    with server.open_client() as client:
        assert len(labels_of(send_image(client, params={"top_k": 9}))) == 5
        assert client.get("/info").json()["runtime"]["device"] == "cpu"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
def test_double_colon_listens_on_ipv4_and_ipv6_and_logs_client_addresses(
    tiny_bundle: Bundle,
) -> None:
    command = serve_command(tiny_bundle, "--host", "::", "--rate-limit", "1/hour")
    with ServerProcess(*command) as server:
        server.wait_for_line(r"ready model=")
        _, port = server.find_address()
        for host in ("[::1]", "127.0.0.1"):
            with server.connect(host, port) as client:
                assert_still_serving(client)
        with server.connect("127.0.0.1", port) as client:  # uvicorn trusts it by default
            client.headers["X-Forwarded-For"] = "192.0.2.1"
            assert_still_serving(client)
        server.wait_for_line(rf'serving url="http://127.0.0.1:{port}/"\n')
        assert "no keys are set" in server.stderr
        assert server.stop() == 0


def test_last_line_of_the_start_is_the_url_and_an_interrupt_exits_0(tiny_bundle: Bundle) -> None:
    with ServerProcess(*serve_command(tiny_bundle, "--host", "localhost")) as server:
        line = server.wait_for_line(r"serving url=\"(\S+)\"\n")
        assert server.stderr.endswith(line.group())
        assert httpx.get(f"{line.group(1)}readyz").status_code == 200
        _, port = server.find_address()
        assert line.group(1) == f"http://localhost:{port}/"
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0


@needs_policies
def test_event_loop_runs_as_sched_batch(server: ServerProcess) -> None:
    with server.open_client() as client:
        assert_still_serving(client)
    assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH
