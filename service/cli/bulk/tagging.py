"""Tagging: names of photos -> records, through a pipeline that is kept busy.

In: a started pipeline, a selection and names. Out: one record for each name, in order; none where
the file cannot be read, which the next run may find mended. Enough photos are under way to keep
every core and the next batch busy, and no more than that are in memory. A photo that cannot be used
costs only itself; a model that cannot be run ends the run. Next: `parts.py`, which files them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from service.cli.bulk.parts import Record
from service.cli.bulk.photos import PhotoStore
from service.errors import ImageError
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.scheduling.tasks import run_in_order
from service.settings import Settings

# A full batch in every worker, one waiting, and as many being read or decoded.
_BATCHES_UNDER_WAY = 4
_LEAST_PHOTOS_UNDER_WAY = 32
# Nobody waits for a single photo, so it waits for as long as it takes.
_DEADLINE_MS = 3_600_000.0
_QUEUE_SIZE = 4096

_log = logging.getLogger(__name__)


def prepare_settings(settings: Settings) -> Settings:
    """Returns the settings with a queue and a deadline for work that nobody waits for."""
    patient = {"queue_size": _QUEUE_SIZE, "deadline_ms": _DEADLINE_MS}
    return settings.model_copy(update=patient)


def describe_question(pipeline: Pipeline, selection: Selection, location: str) -> dict[str, Any]:
    """Returns all that the results depend on, as JSON values.

    Args:
        pipeline: what answers.
        selection: what is asked, from which label sets.
        location: of the photos, path or URL.
    """
    card = pipeline.bundle.card
    return {
        "model": {"name": card.name, "version": card.version},
        "precision": pipeline.engine.precision,
        "max_body_bytes": pipeline.settings.max_body_bytes,
        "max_pixels": pipeline.settings.max_pixels,
        # Not the versions: each store counts its own.
        "label_sets": [{"name": s.name, "digest": s.digest} for s in selection.sets],
        "question": selection.question.model_dump(exclude_none=True),
        "photos": location if "://" in location else str(Path(location).absolute()),
    }


def tag_photos(
    pipeline: Pipeline, selection: Selection, store: PhotoStore, names: Iterable[str]
) -> AsyncGenerator[Record | None]:
    """Tags photos and yields their records in order.

    In the place of a photo whose file cannot be read comes None; the log says why.

    Raises:
        InferenceFailed: the model cannot be run.
        UnavailableError: the pipeline does not take requests.
    """
    engine = pipeline.engine
    under_way = max(
        _LEAST_PHOTOS_UNDER_WAY, _BATCHES_UNDER_WAY * engine.workers * engine.max_batch_size
    )
    under_way = min(under_way, pipeline.settings.queue_size)
    works = (_tag_photo(pipeline, selection, store, name) for name in names)
    return run_in_order(works, under_way)


async def _tag_photo(
    pipeline: Pipeline, selection: Selection, store: PhotoStore, name: str
) -> Record | None:
    limit = pipeline.settings.max_body_bytes
    try:
        data = await asyncio.to_thread(store.read, name, limit)
        if len(data) > limit:
            return _record(name, error=f"The file is larger than {limit} bytes")
        return _record(name, await pipeline.predict(data, selection))
    except OSError as error:
        _log.error("%s was not read: %s", name, error)
        return None
    except ImageError as error:
        return _record(name, error=error.describe())


def _record(name: str, found: Prediction | None = None, error: str | None = None) -> Record:
    described = found.describe() if found else {"image": {"width": None, "height": None}}
    labels = described.get("labels")
    return {"photo": name, **described["image"], "labels": labels, "error": error}
