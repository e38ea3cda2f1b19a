"""Overlays: a label's map becomes a picture to lay over its photo.

In: a map [rows, columns] and the size of the upright photo. Out: a small PNG with the photo's
proportions, transparent where nothing was found and warm where most was. `explanation.py` asks
for it.
"""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract

LONGEST_SIDE = 320
"""Pixels; the map has a few cells, so more would only cost bytes."""

# Opaque enough to see where, thin enough to see what.
_STRONGEST = 0.7
# Level 1: a smooth picture hardly gets smaller with more work.
_COMPRESSION = 1


def _make_palette() -> tuple[list[int], bytes]:
    """Returns 256 colours from dark red over orange to pale yellow, and how opaque each is."""
    level = np.linspace(0.0, 1.0, 256)
    channels = [np.clip(3 * level + 0.3, 0, 1), np.clip(2 * level - 0.5, 0, 1) * 0.95]
    channels.append(np.clip(2 * level - 1.2, 0, 1))
    colours = np.stack(channels, axis=1)  # [256, 3]
    opacity = _STRONGEST * np.sqrt(level)
    return (
        np.rint(colours * 255).astype(np.uint8).ravel().tolist(),
        np.rint(opacity * 255).astype(np.uint8).tobytes(),
    )


_COLOURS, _OPACITY = _make_palette()


def draw_overlay(
    values: NDArray[np.float32], photo: tuple[int, int], contract: InputContract
) -> bytes:
    """Draws a map.

    Args:
        values: float32 [rows, columns], 0..1, over what the model sees of the photo.
        photo: width and height of the upright photo, pixels.
        contract: how the model sees it.

    Returns:
        A PNG file of the photo's proportions, `LONGEST_SIDE` pixels long.
    """
    width, height = photo
    shrink = LONGEST_SIDE / max(width, height)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    left, top, right, bottom = find_seen_part(size, contract)
    cells = Image.fromarray(values)
    seen = cells.resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    levels = np.zeros((size[1], size[0]), np.uint8)
    levels[top:bottom, left:right] = np.rint(np.asarray(seen).clip(0, 1) * 255)
    picture = Image.fromarray(levels, "P")
    picture.putpalette(_COLOURS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", transparency=_OPACITY, compress_level=_COMPRESSION)
    return buffer.getvalue()


def find_seen_part(size: tuple[int, int], contract: InputContract) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of what the model sees of a picture, in its pixels.

    Args:
        size: width and height of the picture.
        contract: whether it is squashed, so that all is seen, or its centre cut out.
    """
    width, height = size
    if contract.resize_mode == "squash":
        return 0, 0, width, height
    frame = contract.width / contract.crop_pct, contract.height / contract.crop_pct
    scale = max(frame[0] / width, frame[1] / height)
    seen_width = min(width, max(1, math.floor(contract.width / scale + 0.5)))
    seen_height = min(height, max(1, math.floor(contract.height / scale + 0.5)))
    left, top = (width - seen_width) // 2, (height - seen_height) // 2
    return left, top, left + seen_width, top + seen_height
