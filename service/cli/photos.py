"""Photos on disk through the service's pipeline, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from service.errors import BusyError, ImageError, InferenceFailed
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.scheduling.tasks import run_in_order
from service.settings import Settings

# Keeps every core and the next batch busy.
_MAX_CONCURRENCY = 16


@dataclass(frozen=True)
class LabelledPhoto:
    """Either a prediction or the reason why there is none.

    Attributes:
        overlays: pictures that show where the first labels are, in the order of the labels.
    """

    path: Path
    prediction: Prediction | None
    failure: str | None = None
    overlays: tuple[Path, ...] = ()


async def label_photos(
    paths: Sequence[Path], question: Question, settings: Settings
) -> AsyncGenerator[LabelledPhoto]:
    """Opens a pipeline and yields the photos in order, as soon as they are labelled."""
    pipeline = open_pipeline(settings)
    await pipeline.start()
    try:
        async with aclosing(label_with(pipeline, paths, question)) as labelled:
            async for photo in labelled:
                yield photo
    finally:
        await pipeline.drain()


async def label_with(
    pipeline: Pipeline, paths: Sequence[Path], question: Question
) -> AsyncGenerator[LabelledPhoto]:
    """Yields the photos in order, labelled by a pipeline that was started."""
    selection = await pipeline.select(question)
    at_once = min(_MAX_CONCURRENCY, pipeline.settings.queue_size)
    works = (_label_photo(pipeline, path, selection) for path in paths)
    async with aclosing(run_in_order(works, at_once)) as labelled:
        async for photo in labelled:
            yield photo


async def _label_photo(pipeline: Pipeline, path: Path, selection: Selection) -> LabelledPhoto:
    try:
        data = await asyncio.to_thread(path.read_bytes)
        return LabelledPhoto(path, await pipeline.predict(data, selection))
    except OSError as error:
        return LabelledPhoto(path, None, error.strerror or "cannot be read")
    except (ImageError, BusyError, InferenceFailed) as error:
        return LabelledPhoto(path, None, error.describe())
