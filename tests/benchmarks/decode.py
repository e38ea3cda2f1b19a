"""What decoding a photo costs on one core, with Pillow alone and with the extra `fast`.

    python -m tests.benchmarks.decode [PHOTO ...]

Prints the median processor time and the mean difference of the pixels, of 255. Without photos, it
takes generated ones of two sizes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from service.bundle.card import InputContract
from service.images import jpeg
from service.images.decode import DecodedImage, decode_image
from service.settings import Settings
from tests.benchmarks.servers import ROOT
from tests.support.photos import encode_picture

_CONTRACT = InputContract(height=240, width=240, resize_mode="squash", interpolation="bicubic")
_SIZES = ((500, 375), (4000, 3000))
_SOURCE = ROOT / "docs/photos/astronaut.jpg"


def main(
    photos: Annotated[list[Path] | None, typer.Argument()] = None, *, rounds: int = 30
) -> None:
    """Compares both decoders, which take turns."""
    if not jpeg.AVAILABLE:
        raise SystemExit("the extra `fast` is not installed")
    print("| photo | Pillow ms | short way ms | ratio | difference |\n|---|---|---|---|---|")
    contents = {path.name: path.read_bytes() for path in photos or ()}
    if not photos:
        for width, height in _SIZES:
            picture = Image.open(_SOURCE).resize((width, height), Image.Resampling.LANCZOS)
            contents[f"{width} x {height}"] = encode_picture(picture, "JPEG", quality=90)
    for name, data in contents.items():
        taken: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for fast, seconds in taken.items():
                started = time.process_time()
                _decode(data, fast=fast)
                seconds.append((time.process_time() - started) * 1000)
        expected, found = (_decode(data, fast=fast).pixels.astype(int) for fast in taken)
        difference = np.abs(expected - found).mean()
        slow, quick = map(np.median, taken.values())
        print(f"| {name} | {slow:.2f} | {quick:.2f} | {slow / quick:.2f} | {difference:.2f} |")


def _decode(data: bytes, *, fast: bool) -> DecodedImage:
    jpeg.AVAILABLE = fast
    return decode_image(data, _CONTRACT, Settings().max_pixels)


if __name__ == "__main__":
    typer.run(main)
