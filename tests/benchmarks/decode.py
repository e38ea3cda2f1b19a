"""What decoding a photo costs on one core, Pillow's way and the short way of the extra `fast`.

    python -m tests.benchmarks.decode [PHOTO ...]

In: photos; without any, generated ones of two sizes. Out: milliseconds of processor time a photo,
median, for both ways, and the mean difference of their pixels, of 255. The ways take turns.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np
from PIL import Image

from service.bundle.card import InputContract
from service.images import jpeg
from service.images.decode import DecodedImage, decode_image
from service.settings import Settings

_CONTRACT = InputContract(
    height=240, width=240, resize_mode="squash", crop_pct=1.0, interpolation="bicubic"
)
_SIZES = ((500, 375), (4000, 3000))
_SOURCE = Path(__file__).parents[2] / "docs" / "photos" / "astronaut.jpg"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    if not jpeg.AVAILABLE:
        raise SystemExit("the extra `fast` is not installed")
    print("| photo | Pillow ms | short way ms | ratio | difference |\n|---|---|---|---|---|")
    for name, data in _list_photos(given.photos):
        slow, fast = _measure(data, given.rounds)
        expected, found = (_decode(data, short=short).pixels.astype(int) for short in (False, True))
        distance = np.abs(expected - found).mean()
        print(f"| {name} | {slow:.2f} | {fast:.2f} | {slow / fast:.2f} | {distance:.2f} |")


def _list_photos(paths: list[Path]) -> list[tuple[str, bytes]]:
    if paths:
        return [(path.name, path.read_bytes()) for path in paths]
    photos = []
    for size in _SIZES:
        stream = io.BytesIO()
        Image.open(_SOURCE).resize(size, Image.Resampling.LANCZOS).save(stream, "JPEG", quality=90)
        photos.append((f"{size[0]} x {size[1]}", stream.getvalue()))
    return photos


def _decode(data: bytes, *, short: bool) -> DecodedImage:
    jpeg.AVAILABLE = short
    return decode_image(data, _CONTRACT, Settings().max_pixels)


def _measure(data: bytes, rounds: int) -> tuple[float, float]:
    """Returns the median milliseconds of Pillow's way and of the short way."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for short, seconds in taken.items():
            started = time.process_time()
            _decode(data, short=short)
            seconds.append((time.process_time() - started) * 1000)
    return float(np.median(taken[False])), float(np.median(taken[True]))


if __name__ == "__main__":
    main()
