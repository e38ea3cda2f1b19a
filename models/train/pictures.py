"""Photo files to upright RGB pictures, as the service sees them.

In: a labelled photo. Out: a picture: transparency lies on white, 16-bit samples keep their high
byte (`service/images/decode.py` says the same). Next: `views.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps

from models.data import DataError, LabelledImage


def read_picture(image: LabelledImage) -> Image.Image:
    """Decodes a photo, turns it upright and flattens it to RGB.

    Raises:
        DataError: the file is missing or broken.
    """
    try:
        with Image.open(image.path) as opened:
            return _flatten(ImageOps.exif_transpose(opened))
    except Exception as error:  # Pillow's readers raise nearly every type there is
        raise DataError(f"{image.path} is missing or no picture that can be read") from error


def describe_files(images: Sequence[LabelledImage]) -> str:
    """Returns what changes when a photo does: each one's place, size and time of change.

    Raises:
        DataError: a file is missing.
    """
    root = os.path.commonpath([image.path.parent for image in images])
    try:
        stats = [image.path.stat() for image in images]
    except OSError as error:
        raise DataError(f"{error.filename} is missing") from error
    return "\n".join(
        f"{image.path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}"
        for image, stat in zip(images, stats, strict=True)
    )


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it
        samples = np.asarray(image).astype(np.uint32)
        grey = (samples >> 8).clip(0, 255).astype(np.uint8)
        grey[samples == image.info.get("transparency", -1)] = 255
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
