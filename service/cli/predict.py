"""`ml-decoder predict`: labels on stdout, and with `--explain` pictures beside the photos."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from PIL import Image

from service.bundle.card import InputContract
from service.cli.console import (
    Format,
    describe_photo,
    show_photo,
    show_progress,
    write_csv,
    write_csv_head,
    write_json,
)
from service.cli.photos import LabelledPhoto, label_photos, run_pipeline
from service.errors import ImageError
from service.images.decode import decode_image
from service.images.formats import name_overlay
from service.labels.question import Question
from service.pipeline.prediction import Prediction
from service.settings import Settings

_MAX_OVERLAY_SIDE = 1024


async def predict_photos(
    photos: Sequence[Path], question: Question, settings: Settings, output: Format
) -> bool:
    """Writes the labels of photos; returns whether none of them failed."""
    write = {
        Format.TABLE: show_photo,
        Format.JSON: lambda photo: write_json(describe_photo(photo)),
        Format.CSV: write_csv,
    }[output]
    done, complete = 0, True
    with show_progress(results_on_stdout=True) as report:
        report(done, len(photos))
        # Closed in any case: if Python exits while a model runs, it ends with SIGABRT.
        async with run_pipeline(settings) as pipeline:
            selection = await pipeline.select(question)
            if output is Format.CSV:
                write_csv_head()  # only after the start, which may fail
            async with aclosing(label_photos(pipeline, selection, photos)) as labelled:
                async for found in labelled:
                    photo = found
                    if question.explain:
                        photo = await asyncio.to_thread(write_overlays, found)
                    write(photo)
                    done += 1
                    report(done, len(photos))
                    complete = complete and photo.failure is None
    return complete


def write_overlays(photo: LabelledPhoto) -> LabelledPhoto:
    """Writes `dog.jpg.map-1-cat.jpg` and so on beside `dog.jpg`, best label first."""
    if photo.prediction is None:
        return photo
    try:
        return replace(photo, overlays=tuple(_draw(photo.path, photo.prediction)))
    except OSError as error:
        reason = error.strerror or "the pictures cannot be made"
    except ImageError:
        reason = "the photo has changed"
    return LabelledPhoto(photo.path, None, f"its maps cannot be written: {reason}")


def _draw(path: Path, prediction: Prediction) -> Iterator[Path]:
    # Turned and flattened as the model sees it.
    shrink = min(1.0, _MAX_OVERLAY_SIDE / max(prediction.width, prediction.height))
    contract = InputContract(
        width=max(1, round(prediction.width * shrink)),
        height=max(1, round(prediction.height * shrink)),
        resize_mode="squash",
        interpolation="bicubic",
    )
    max_pixels = prediction.width * prediction.height
    decoded = decode_image(path.read_bytes(), contract, max_pixels=max_pixels)
    upright = Image.fromarray(decoded.pixels).convert("RGBA")
    found = zip(prediction.labels, prediction.explanations, strict=False)
    for rank, (label, explanation) in enumerate(found, start=1):
        assert explanation.overlay is not None
        with Image.open(io.BytesIO(explanation.overlay)) as overlay:
            layer = overlay.convert("RGBA").resize(upright.size, Image.Resampling.BICUBIC)
        target = path.with_name(name_overlay(path.name, rank, label.label))
        Image.alpha_composite(upright, layer).convert("RGB").save(target, quality=90)
        yield target
