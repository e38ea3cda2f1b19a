"""What one client's requests may cost others: memory, threads, time, unread answers."""

import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx2 as httpx
import pytest
from PIL import Image

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve
from tests.fuzz.seeds import make_seeds
from tests.support.odd_files import make_dense_webp
from tests.support.photos import encode_picture, make_photo, make_picture
from tests.support.serving import (
    PHOTO,
    assert_problem,
    assert_still_serving,
    send_image,
    send_images,
    serve_app,
)
from tests.support.threads import wait_until

MIB = 2**20
SIDE = 7000  # 49 megapixels
SIZES = ((8, 8), (320, 240), (1, 3000), (1600, 1200), (2500, 300))
ROUNDS = 6


@pytest.fixture(scope="module")
def server(open_bundle: Bundle) -> Iterator[ServerProcess]:
    with serve(open_bundle, "--decode-threads", "2") as (server, _):
        yield server


@pytest.fixture(scope="module")
def large_png() -> bytes:
    return encode_picture(Image.new("RGBA", (SIDE, SIDE)), "PNG", compress_level=1)


@contextmanager
def limit_memory(server: ServerProcess, more: int) -> Iterator[None]:
    """Lets the server have only so many bytes of memory more."""
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    limit = server.read_memory("VmSize") + more
    resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_AS, free)


@pytest.mark.parametrize("kind", ["PNG", "WebP", "progressive JPEG", "GIF"])
def test_photo_without_memory_is_503_and_answered_later(
    server: ServerProcess, client: httpx.Client, large_png: bytes, kind: str
) -> None:
    make = {
        "PNG": lambda: large_png,
        "WebP": lambda: make_dense_webp(SIDE, SIDE) + bytes(5000),
        "progressive JPEG": lambda: encode_picture(
            Image.new("CMYK", (SIDE, SIDE)), "JPEG", progressive=True
        ),
        "GIF": lambda: encode_picture(Image.new("L", (SIDE, SIDE)), "GIF"),
    }
    photo = make[kind]()
    with limit_memory(server, 100 * MIB):
        assert_problem(send_image(client, photo), 503, "out_of_memory")
        assert_problem(send_image(client, PHOTO[:300]), 400, "invalid_image")
        assert_still_serving(client)
    assert send_image(client, photo).status_code == 200


def test_many_large_photos_take_the_memory_of_one_and_give_it_back(
    server: ServerProcess, client: httpx.Client, large_png: bytes
) -> None:
    assert send_image(client, large_png).status_code == 200
    peak, before = server.read_memory("VmHWM"), server.read_memory()
    results = send_images(client, [large_png] * 3).json()["results"]
    assert all(result["image"] == {"width": SIDE, "height": SIDE} for result in results)
    assert server.read_memory("VmHWM") - peak < 100 * MIB
    assert server.read_memory() - before < 100 * MIB


def test_blank_file_of_a_million_pixels_a_byte_is_refused(client: httpx.Client) -> None:
    bomb = make_dense_webp(SIDE, SIDE)
    problem = assert_problem(send_image(client, bomb), 413, "too_many_pixels")
    assert problem["detail"].startswith("Of a file of 28 bytes at most 542144 pixels")
    refused, answered = send_images(client, [bomb, PHOTO]).json()["results"]
    assert refused["error"]["code"] == "too_many_pixels"
    assert answered["labels"]
    assert send_image(client, make_dense_webp(700, 700)).status_code == 200


def test_small_photo_is_answered_before_a_calibration_with_large_ones(client: httpx.Client) -> None:
    large = encode_picture(Image.new("1", (SIDE, 2000)), "PNG")
    with ThreadPoolExecutor(1) as clients:
        slow = clients.submit(calibrate, client, [large] * 30)
        wait_until(lambda: "ml_decoder_queue_size 0" not in client.get("/metrics").text)
        for _ in range(3):
            assert send_image(client).status_code == 200
        assert not slow.done()
        assert all("score" in photo for photo in slow.result().json()["positive"])


def calibrate(client: httpx.Client, photos: list[bytes]) -> httpx.Response:
    files = [("positive", photo) for photo in photos]
    return client.post("/labels/everyday/calibrate?label=lamp", files=files)


def test_unread_answers_count_for_the_held_bytes(open_bundle: Bundle) -> None:
    names = [f"{number:05}{'x' * 110}" for number in range(22_000)]  # 4 MB as JSON
    limits = ("--max-body-bytes", "4000000", "--max-held-bytes", "20000000")
    with serve(open_bundle, *limits) as (server, client):
        client.post("/labels", json={"name": "wide", "labels": names}).raise_for_status()
        with ExitStack() as readers:
            for _ in range(2):
                reader = readers.enter_context(socket.socket())
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(server.find_address())
                reader.sendall(b"GET /labels/wide HTTP/1.1\r\nHost: x\r\n\r\n")
                assert reader.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"
            assert_problem(client.get("/labels/wide"), 429, "queue_full")
            assert_still_serving(client)
        wait_until(lambda: client.get("/labels/wide").status_code == 200)
        assert len(client.get("/labels/wide").content) > 3_000_000
        assert_still_serving(client)


def test_request_has_a_limited_number_of_overlays(mapped_bundle: Bundle) -> None:
    with serve_app(mapped_bundle.path, label_store="memory") as client:
        for images, top_k, status in ((2, 50, 200), (3, 34, 422), (2, None, 422)):
            asked = {"explain": "overlay"} | ({} if top_k is None else {"top_k": top_k})
            answer = send_images(client, [make_photo()] * images, params=asked)
            assert answer.status_code == status
            if status == 422:
                (value,) = assert_problem(answer, 422, "invalid_parameters")["errors"]
                says = f"for {images} images send a top_k of at most {100 // images}"
                assert says in value["reason"]


def test_memory_reaches_a_plateau(open_bundle: Bundle) -> None:
    photos = [encode_picture(make_picture(i, *size), "JPEG") for i, size in enumerate(SIZES)]
    photos += [photo[: len(photo) // 2] for photo in photos] + make_seeds()
    with serve(open_bundle) as (server, client):
        peaks = []
        for number in range(1, 3 * ROUNDS + 1):
            for photo in photos:
                assert send_image(client, photo).status_code in (200, 400, 415)
            if number in (ROUNDS, 3 * ROUNDS):
                peaks.append(server.read_memory("VmHWM"))
        assert peaks[1] - peaks[0] < 10 * MIB
        assert_still_serving(client)
