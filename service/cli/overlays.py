"""Overlays: a photo's labels drawn over it, one picture each, beside the photo.

In: a labelled photo with explanations. Out: `dog.jpg` gets `dog.jpg.map-1-cat.jpg` and so on, best
label first. Next: `console.py`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageOps

from service.cli.photos import LabelledPhoto
from service.formats import name_overlay
from service.pipeline import Prediction

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
        reason = error.strerror or "the photo cannot be read again"
        return LabelledPhoto(photo.path, None, f"its maps cannot be written: {reason}")


def _write(path: Path, prediction: Prediction) -> Iterator[Path]:
    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGBA")
    upright.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    found = zip(prediction.labels, prediction.explanations, strict=False)
    for rank, (label, explanation) in enumerate(found, start=1):
        assert explanation.overlay is not None
        with Image.open(io.BytesIO(explanation.overlay)) as overlay:
            layer = overlay.convert("RGBA").resize(upright.size, Image.Resampling.BICUBIC)
        target = path.with_name(name_overlay(path.name, rank, label.label))
        Image.alpha_composite(upright, layer).convert("RGB").save(target, quality=90)
        yield target
