"""Small pictures made by seed, so that no test needs a file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# The change of an upright picture by a camera, for each EXIF orientation.
CAMERA_TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def make_picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    """Returns a smooth random RGB picture; other seeds look clearly different."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)


def make_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def encode_picture(picture: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    """Returns the picture as the content of a file."""
    buffer = io.BytesIO()
    picture.save(buffer, file_format, **options)
    return buffer.getvalue()


def make_photo(seed: int = 0, file_format: str = "PNG", *, width: int = 48) -> bytes:
    """Returns the content of a small photo's file, 32 pixels high."""
    return encode_picture(make_picture(seed, width), file_format)


def write_photos(folder: Path, count: int) -> list[Path]:
    """Writes the photos `00.png`, `01.png` and so on, each of another picture."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:02}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(make_photo(number))
    return paths
