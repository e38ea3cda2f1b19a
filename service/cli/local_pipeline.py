"""Photos on disk through the service's pipeline, without a server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from service.errors import BusyError, ImageError, InferenceFailed, OutOfMemory
from service.images.raw import load_photo
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.scheduling.tasks import ResultT, run_in_order
from service.settings import Settings


class PhotoResult(NamedTuple):
    """Either a prediction or the reason why there is none."""

    path: Path
    prediction: Prediction | None
    failure: str | None = None
    overlays: tuple[Path, ...] = ()  # pictures with the maps of the first labels


@asynccontextmanager
async def run_pipeline(settings: Settings) -> AsyncGenerator[Pipeline]:
    """Yields a started pipeline and drains it."""
    pipeline = open_pipeline(settings)
    await pipeline.start()
    try:
        yield pipeline
    finally:
        await pipeline.drain()


def label_photos(
    pipeline: Pipeline, selection: Selection, paths: Iterable[Path]
) -> AsyncGenerator[PhotoResult]:
    """Yields the photos in order, as soon as they are labelled; close it before the pipeline."""
    works = (_label_photo(pipeline, selection, path) for path in paths)
    return run_in_order(works, pipeline.concurrency)


async def _label_photo(pipeline: Pipeline, selection: Selection, path: Path) -> PhotoResult:
    result = await try_photo(path, lambda photo: pipeline.predict(photo, selection))
    return PhotoResult(path, *result)


async def try_photo(
    path: Path, use: Callable[[bytes], Awaitable[ResultT]]
) -> tuple[ResultT | None, str | None]:
    """Returns the result of `use` for the content of a file, or the reason why there is none."""
    try:
        return await use(await asyncio.to_thread(load_photo, path)), None
    except OSError as error:
        return None, error.strerror or "cannot be read"
    except MemoryError:
        return None, OutOfMemory.title
    except (ImageError, BusyError, InferenceFailed) as error:
        return None, error.describe()
