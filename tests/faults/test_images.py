"""Odd, broken and hostile pictures: labels or a 4xx, fast, and with the memory of any other.

`tests/service/images` has all the files; here is one for each answer, and what they cost a server.
"""

import struct
import zlib

import httpx2 as httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.support.odd_files import make_chunk, make_damaged_pngs, put_into_png
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, send_image, send_images
from tests.support.unread_files import make_segment

MIB = 1024 * 1024
ALL = {"top_k": 5}
JPEG, PNG = make_photo(0, "JPEG"), make_photo(0)


def make_pixel_bomb(side: int = 30_000) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(side * (side // 8 + 1)), 9)
    parts = make_chunk(b"IHDR", header) + make_chunk(b"IDAT", rows) + make_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_broken_image_is_400_by_its_damage(client: httpx.Client) -> None:
    problem = assert_problem(send_image(client, make_damaged_pngs()["IDAT"]), 400, "invalid_image")
    assert problem["detail"] == "The PNG's IDAT has a wrong checksum."


def test_empty_file_is_400_and_says_so(client: httpx.Client) -> None:
    batch = client.post("/predict/batch", files=[("images", b""), ("images", PNG)])
    sent = (
        send_image(client, b""),
        client.post("/predict", content=b"", headers={"content-type": "image/jpeg"}),
        client.post("/predict", json={"image": ""}),
    )
    for response in sent:
        assert assert_problem(response, 400, "empty_image")["title"] == "The file is empty"
    empty, good = batch.json()["results"]
    assert empty["error"]["code"] == "empty_image"
    assert good["labels"]


def test_whole_file_of_another_kind_is_415_by_its_name(client: httpx.Client) -> None:
    file = b"\0\0\0\x1cftypheic" + bytes(99)
    problem = assert_problem(send_image(client, file), 415, "unsupported_image")
    assert "type is HEIF" in problem["detail"]
    raw = send_image(client, b"FUJIFILMCCD-RAW 0201" + bytes(99))
    assert "(RAF): export" in assert_problem(raw, 415, "unsupported_image")["detail"]
    page = assert_problem(send_image(client, b"<html><p>"), 400, "invalid_image")
    assert page["detail"].startswith("It is a web page")
    first, second = send_images(client, [file, PNG]).json()["results"]
    assert first["error"]["code"] == "unsupported_image"
    assert second["labels"]


def test_pixel_bomb_is_refused_without_memory(server: ServerProcess, client: httpx.Client) -> None:
    bomb = make_pixel_bomb()
    assert len(bomb) < 200_000
    before = server.read_memory("VmHWM")
    for _ in range(10):
        assert_problem(send_image(client, bomb), 413, "too_many_pixels")
    assert server.read_memory("VmHWM") - before < 20 * MIB


FILL = b"\xff" * 60_000
HOSTILE_METADATA = {
    "exif": JPEG[:2] + make_segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08" + FILL) + JPEG[2:],
    "icc": JPEG[:2] + make_segment(0xE2, b"ICC_PROFILE\0\x01\x01" + FILL) + JPEG[2:],
    "png exif": put_into_png(PNG, make_chunk(b"eXIf", b"II*\0" + b"\xff" * 50_000)),
    "png icc": put_into_png(PNG, make_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(9_000_000)))),
    "text bomb": put_into_png(PNG, make_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(10**8)))),
    "chunks": put_into_png(PNG, make_chunk(b"tEXt", b"k\0v") * 20_000),
}


@pytest.mark.parametrize("photo", HOSTILE_METADATA.values(), ids=HOSTILE_METADATA)
def test_hostile_metadata_is_ignored_or_400(
    server: ServerProcess, client: httpx.Client, photo: bytes
) -> None:
    before = server.read_memory("VmHWM")
    response = send_image(client, photo, params=ALL)
    if response.status_code != 200:
        assert_problem(response, 400, "invalid_image")
    assert server.read_memory("VmHWM") - before < 100 * MIB
