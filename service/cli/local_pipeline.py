"""Photos on disk through the service's pipeline, without a server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
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

    async def label(path: Path) -> PhotoResult:
        result = await _try_photo(path, lambda photo: pipeline.predict(photo, selection))
        return PhotoResult(path, *result)

    return run_in_order(map(label, paths), pipeline.concurrency)


async def use_photos(
    pipeline: Pipeline,
    paths: Sequence[Path],
    use: Callable[[bytes], Awaitable[ResultT]],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[dict[Path, ResultT], list[PhotoResult]]:
    """Returns the results of `use` for the contents of usable photos, in order, and the others."""
    used: dict[Path, ResultT] = {}
    unusable: list[PhotoResult] = []
    works, rest = (_try_photo(path, use) for path in paths), iter(paths)
    async with aclosing(run_in_order(works, pipeline.concurrency)) as results:
        async for result, failure in results:
            path = next(rest)
            if result is None:
                unusable.append(PhotoResult(path, None, failure))
            else:
                used[path] = result
            report(len(used) + len(unusable), len(paths))
    return used, unusable


async def _try_photo(
    path: Path, use: Callable[[bytes], Awaitable[ResultT]]
) -> tuple[ResultT | None, str | None]:
    try:
        return await use(await asyncio.to_thread(load_photo, path)), None
    except OSError as error:
        return None, error.strerror or "cannot be read"
    except MemoryError:
        return None, OutOfMemory.title
    except (ImageError, BusyError, InferenceFailed) as error:
        return None, error.describe()
