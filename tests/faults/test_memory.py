"""Memory: photos of all sizes, good and bad, one after the other, do not raise it.

The long run, which also measures latency, is `python -m tests.benchmarks.costs soak`.
"""

import httpx2 as httpx

from service.bundle.reader import Bundle
from tests.faults.conftest import serve
from tests.fuzz.seeds import make_seeds
from tests.support.photos import encode_picture, make_picture
from tests.support.serving import assert_still_serving, send_image

MIB = 1024 * 1024
SIZES = ((8, 8), (320, 240), (1, 3000), (1600, 1200), (2500, 300))
ROUNDS = 6


def send_all(client: httpx.Client, photos: list[bytes]) -> None:
    for photo in photos:
        assert send_image(client, photo).status_code in (200, 400, 415)


def test_memory_reaches_a_plateau(open_bundle: Bundle) -> None:
    photos = [encode_picture(make_picture(i, *size), "JPEG") for i, size in enumerate(SIZES)]
    photos += [photo[: len(photo) // 2] for photo in photos] + make_seeds()
    with serve(open_bundle) as (server, client):
        for _ in range(ROUNDS):
            send_all(client, photos)
        plateau = server.read_memory("VmHWM")
        for _ in range(2 * ROUNDS):
            send_all(client, photos)
        assert server.read_memory("VmHWM") - plateau < 10 * MIB
        assert_still_serving(client)
