"""Photos: files on disk -> labels, through the service's pipeline but without a server.

In: paths and a `Question`. Out: one `LabelledPhoto` for each path, in order. A photo that
cannot be used costs only itself. Next: `console.py`, which shows them.
"""

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

# Enough to keep every core and the next batch busy, few enough to stay small in memory.
_PHOTOS_AT_ONCE = 16


@dataclass(frozen=True)
class LabelledPhoto:
    """What came of one photo: a prediction, or a sentence that says why there is none.

    Attributes:
        path: the photo.
        prediction: None where there is none.
        failure: why not.
        overlays: pictures of where the labels were found, of the first labels in their order.
    """

    path: Path
    prediction: Prediction | None
    failure: str | None = None
    overlays: tuple[Path, ...] = ()


async def label_photos(
    paths: Sequence[Path], question: Question, settings: Settings
) -> AsyncGenerator[LabelledPhoto]:
    """Labels photos and yields them in order, each as soon as it is there.

    Raises:
        StartError: the pipeline cannot start as configured.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceError: the question does not fit the label sets.
    """
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
    """Labels photos with a pipeline that has been started, in order.

    Raises:
        ServiceError: the question does not fit the label sets.
    """
    selection = await pipeline.select(question)
    at_once = min(_PHOTOS_AT_ONCE, pipeline.settings.queue_size)
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
