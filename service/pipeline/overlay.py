"""Draws a label's map as a small PNG to lay over its photo: higher values have warmer colours."""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract

LONGEST_SIDE = 256
"""Pixels; a map has few cells, so more pixels would show no more. 320 take twice the time."""

_MAX_OPACITY = 0.7
_COMPRESSION = 1  # smooth pictures hardly get smaller with more

# A palette from dark red over orange to pale yellow.
_LEVEL = np.linspace(0.0, 1.0, 256)
_RGB = np.clip([3 * _LEVEL + 0.3, 2 * _LEVEL - 0.5, 2 * _LEVEL - 1.2], 0, 1)
_COLOURS: list[int] = np.rint(_RGB.T * (255, 242.25, 255)).astype(np.uint8).ravel().tolist()
_OPACITY = np.rint(_MAX_OPACITY * np.sqrt(_LEVEL) * 255).astype(np.uint8).tobytes()


def draw_overlay(
    values: NDArray[np.float32], photo: tuple[int, int], contract: InputContract
) -> bytes:
    """Returns a PNG file with the photo's proportions; its longest side is `LONGEST_SIDE`.

    `values` are float32 [rows, columns], 0..1, over the part that the model sees; `photo` is width
    and height of the upright photo, pixels.
    """
    width, height = photo
    shrink = LONGEST_SIDE / max(width, height)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    left, top, right, bottom = find_seen_part(size, contract)
    cells = Image.fromarray(np.rint(values * 255).astype(np.uint8))
    seen = cells.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    levels = np.zeros((size[1], size[0]), np.uint8)
    levels[top:bottom, left:right] = np.asarray(seen)
    picture = Image.fromarray(levels, "P")
    picture.putpalette(_COLOURS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", transparency=_OPACITY, compress_level=_COMPRESSION)
    return buffer.getvalue()


def find_seen_part(size: tuple[int, int], contract: InputContract) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of the part that the model sees, in pixels of `size`."""
    width, height = size
    if contract.resize_mode == "squash":
        return 0, 0, width, height
    frame = contract.width / contract.crop_pct, contract.height / contract.crop_pct
    scale = max(frame[0] / width, frame[1] / height)
    seen_width = min(width, max(1, math.floor(contract.width / scale + 0.5)))
    seen_height = min(height, max(1, math.floor(contract.height / scale + 0.5)))
    left, top = (width - seen_width) // 2, (height - seen_height) // 2
    return left, top, left + seen_width, top + seen_height
