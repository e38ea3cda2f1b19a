"""Overlays: a photo's labels drawn over it, one picture each, beside the photo.

In: a labelled photo with explanations. Out: `dog.jpg` gets `dog.jpg.map-1-cat.jpg` and so on, best
label first. Next: `console.py`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from PIL import Image

from service.bundle.card import InputContract
from service.cli.photos import LabelledPhoto
from service.errors import ImageError
from service.images.decode import decode_image
from service.images.formats import name_overlay
from service.pipeline.prediction import Prediction

_LONGEST_SIDE = 1024


def write_overlays(photo: LabelledPhoto) -> LabelledPhoto:
    """Writes the pictures and returns the photo with their paths, or with why there are none.

    A picture of an earlier call is replaced.
    """
    if photo.prediction is None:
        return photo
    try:
        return replace(photo, overlays=tuple(_write(photo.path, photo.prediction)))
    except OSError as error:
        reason = error.strerror or "the pictures cannot be made"
        return LabelledPhoto(photo.path, None, f"its maps cannot be written: {reason}")
    except ImageError:  # another file than the one that was labelled
        return LabelledPhoto(photo.path, None, "its maps cannot be written: it has changed")


def _write(path: Path, prediction: Prediction) -> Iterator[Path]:
    upright = _read_upright(path, prediction.width, prediction.height)
    found = zip(prediction.labels, prediction.explanations, strict=False)
    for rank, (label, explanation) in enumerate(found, start=1):
        assert explanation.overlay is not None
        with Image.open(io.BytesIO(explanation.overlay)) as overlay:
            layer = overlay.convert("RGBA").resize(upright.size, Image.Resampling.BICUBIC)
        target = path.with_name(name_overlay(path.name, rank, label.label))
        Image.alpha_composite(upright, layer).convert("RGB").save(target, quality=90)
        yield target


def _read_upright(path: Path, width: int, height: int) -> Image.Image:
    """Reads the photo as the model saw it, but for its size: turned and flattened as there."""
    shrink = min(1.0, _LONGEST_SIDE / max(width, height))
    shown = InputContract(
        width=max(1, round(width * shrink)),
        height=max(1, round(height * shrink)),
        resize_mode="squash",
        interpolation="bicubic",
    )
    decoded = decode_image(path.read_bytes(), shown, max_pixels=width * height)
    return Image.fromarray(decoded.pixels).convert("RGBA")
