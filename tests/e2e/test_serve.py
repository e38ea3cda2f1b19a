"""The server as a user starts it: a process, a port, signals; torch, timm and onnx are absent."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle import Bundle
from tests.e2e.server_process import ServerProcess
from tests.photos import encode_picture, make_photo, make_picture


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle) -> Iterator[ServerProcess]:
    flags = ("--max-body-bytes", "200000", "--header-timeout-seconds", "1")
    with ServerProcess(
        *serve_command(tiny_bundle.path), *flags, ML_DECODER_BODY_TIMEOUT_SECONDS="1"
    ) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.open_client() as client:
        yield client


def serve_command(bundle: Path) -> tuple[str, ...]:
    return ("serve", "--bundle", str(bundle), "--port", "0", "--device", "cpu")


def send_image(client: httpx.Client, data: bytes) -> httpx.Response:
    return client.post("/predict", files={"image": data}, params={"top_k": 5})


def scores(response: httpx.Response) -> dict[str, float]:
    assert response.status_code == 200, response.text
    return {label["label"]: label["score"] for label in response.json()["labels"]}


def read_reply(connection: socket.socket) -> bytes:
    """Returns all that arrives until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_photo_gets_labels_while_torch_timm_and_onnx_are_unimportable(
    client: httpx.Client,
) -> None:
    assert len(scores(send_image(client, make_photo()))) == 5
    assert client.get("/info").json()["runtime"]["device"] == "cpu"


def test_settings_come_from_flags_and_variables_alike(client: httpx.Client) -> None:
    too_large = client.post(
        "/predict", content=b"x" * 200_001, headers={"content-type": "image/png"}
    )
    assert too_large.status_code == 413  # by flag; the body timeout below is by variable
    assert scores(send_image(client, make_photo()))


def test_concurrent_clients_each_get_their_own_answer(client: httpx.Client) -> None:
    photos = [make_photo(seed) for seed in range(8)]
    alone = [scores(send_image(client, photo)) for photo in photos]
    assert len({json.dumps(answer) for answer in alone}) == len(photos)
    with ThreadPoolExecutor(8) as clients:
        together = list(clients.map(lambda i: scores(send_image(client, photos[i % 8])), range(64)))
    for i, answer in enumerate(together):
        assert answer == pytest.approx(alone[i % 8], abs=1e-5)


def test_endless_chunked_body_is_refused_before_it_ends(
    server: ServerProcess, client: httpx.Client
) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
    with socket.create_connection(server.find_address(), timeout=30) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(4):
            connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert scores(send_image(client, make_photo()))


def test_content_length_over_the_limit_is_refused_before_any_byte_of_the_body(
    server: ServerProcess, client: httpx.Client
) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
    with socket.create_connection(server.find_address(), timeout=30) as connection:
        connection.sendall(head + b"Content-Length: 1000000000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert scores(send_image(client, make_photo()))


def test_body_that_stops_coming_is_answered_408_and_closed(
    server: ServerProcess, client: httpx.Client
) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
    with socket.create_connection(server.find_address(), timeout=30) as connection:
        connection.sendall(head + b"Content-Length: 1000\r\n\r\nxyz")
        assert scores(send_image(client, make_photo()))  # others are served meanwhile
        reply = read_reply(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in reply


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nHost: "])
def test_headers_that_stop_coming_close_the_connection(
    server: ServerProcess, client: httpx.Client, head: bytes
) -> None:
    with socket.create_connection(server.find_address(), timeout=30) as connection:
        connection.sendall(head)
        assert read_reply(connection) == b""
    assert scores(send_image(client, make_photo()))


def test_request_log_is_one_line_with_the_request_id(
    server: ServerProcess, client: httpx.Client
) -> None:
    client.get("/livez?x=1", headers={"X-Request-ID": "find-me.1"})
    line = server.wait_for_line(r".*request_id=find-me\.1\n").group()
    assert "INFO" in line
    assert 'method=GET path="/livez" status=200' in line


def test_client_that_leaves_while_it_waits_is_logged_and_others_are_served(
    tiny_bundle: Bundle,
) -> None:
    slow = encode_picture(make_picture(1, 3000, 2500), "PNG", compress_level=1)
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
    length = f"Content-Length: {len(slow)}\r\nX-Request-ID: left\r\n\r\n".encode()
    with ServerProcess(*serve_command(tiny_bundle.path)) as server, server.open_client() as client:
        with socket.create_connection(server.find_address(), timeout=30) as connection:
            connection.sendall(head + length + slow)
        server.wait_for_line(r"status=499 duration_ms=\S+ request_id=left\n")
        assert scores(send_image(client, make_photo()))


def test_sigterm_under_load_completes_what_is_in_flight_and_exits_0(tiny_bundle: Bundle) -> None:
    # One thread decodes one photo after the other, so when the first answer is logged the
    # others are still waiting. No limit is so short that a slow machine could reach it.
    photo = encode_picture(make_picture(1, 1500, 1200), "PNG", compress_level=1)
    limits = ("--drain-seconds", "50", "--deadline-ms", "60000", "--decode-threads", "1")
    command = (*serve_command(tiny_bundle.path), *limits)
    with ServerProcess(*command) as server, server.open_client() as client:
        with ThreadPoolExecutor(8) as clients:
            running = [clients.submit(send_image, client, photo) for _ in range(8)]
            server.wait_for_line(r'path="/predict" status=200')
            server.send_signal(signal.SIGTERM)
            codes = [future.result().status_code for future in running]
        assert server.wait() == 0
        assert "Traceback" not in server.stderr
    assert set(codes) <= {200, 503}  # 503: its upload was not complete at the signal
    assert codes.count(200) >= 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_an_idle_server_exits_0(tiny_bundle: Bundle, number: int) -> None:
    with ServerProcess(*serve_command(tiny_bundle.path)) as server:
        server.open_client().close()
        server.send_signal(number)
        assert server.wait() == 0


def flip_a_byte(bundle: Path) -> None:
    graph = next(bundle.glob("encoder.fp32*"))
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)


def remove_a_graph(bundle: Path) -> None:
    next(bundle.glob("trained_head.fp32*")).unlink()


def drop_a_label(bundle: Path) -> None:
    labels = bundle / "labels.json"
    labels.write_text(json.dumps(json.loads(labels.read_text())[1:]))


@pytest.mark.parametrize("damage", [flip_a_byte, remove_a_graph, drop_a_label])
def test_damaged_bundle_stops_the_start_with_one_line(
    tiny_bundle: Bundle, tmp_path: Path, damage: object
) -> None:
    bundle = tmp_path / tiny_bundle.path.name
    shutil.copytree(tiny_bundle.path, bundle)
    assert callable(damage)
    damage(bundle)
    assert_start_fails(*serve_command(bundle), "--log-level", "error")


def test_cuda_without_a_gpu_stops_the_start_with_one_line(tiny_bundle: Bundle) -> None:
    command = (*serve_command(tiny_bundle.path), "--log-level", "error", "--device", "cuda")
    # No device is visible, so this holds on a machine with a GPU as well.
    assert_start_fails(*command, CUDA_VISIBLE_DEVICES="")


def assert_start_fails(*command: str, **variables: str) -> None:
    with ServerProcess(*command, **variables) as server:
        assert server.wait() == 2
        lines = server.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ml-decoder: ")
    assert "ready" not in lines[0]
