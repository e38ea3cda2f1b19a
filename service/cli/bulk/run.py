"""A bulk run in one process: photos through the service's own pipeline into Parquet parts."""

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.cli.bulk.embedded import open_earlier, prepare_answers
from service.cli.bulk.parts import (
    CATEGORIES,
    ENCODER,
    FLAGGED,
    TEXTS,
    PartFolder,
    Record,
    describe_texts,
    make_record,
    open_parts,
    spell_place,
)
from service.cli.bulk.photo_store import PhotoStore, open_photos
from service.cli.local_pipeline import run_pipeline
from service.errors import ImageError, OutOfMemory, StartError, list_names
from service.fields import is_utf8
from service.labels.label_set import LabelSet
from service.labels.sources.learnt import list_contents
from service.pipeline.pipeline import Pipeline
from service.pipeline.selection import Selection
from service.question import Question
from service.scheduling.tasks import run_in_order
from service.settings import Settings

# A full batch in every worker, one waiting, and as many being read or decoded.
_CONCURRENT_BATCHES = 4
_MIN_CONCURRENCY = 32
_QUEUE_SIZE = 4096
_DEADLINE_MS = 3_600_000.0
_MOST_GONE = 0.1  # of the photos of results that are replaced: more look like a disk that is away

logger = logging.getLogger(__name__)

Report = Callable[[int, int], None]
"""Called after each photo (on Ray, each part) with the numbers of photos seen and to do."""


@dataclass(frozen=True)
class BulkJob:
    """Arguments of a run."""

    photos: str  # folder or list, a path or a URL
    out: str  # folder, a path or a URL
    question: Question
    settings: Settings
    part_size: int  # photos per file; a run that is killed loses at most so many
    retry_failed: bool = False  # photos that have an error
    exclude: tuple[str, ...] = ()  # patterns of files and folders to leave out
    from_results: bool = False  # `photos` are the results of an earlier run, with embeddings
    add_new: bool = False  # if the label sets have learnt since, tags all photos again


@dataclass
class Totals:
    """Numbers of photos."""

    tagged: int = 0  # got labels in this run
    failed: int = 0  # got an error in this run
    skipped: int = 0  # were done before
    unread: int = 0  # could not be read; the next run tries them again
    failed_before: int = 0  # have an error, among the skipped
    left_out: int = 0  # other files and folders
    gone: int = 0  # have a row of an earlier run, and are not among the photos
    came: int = 0  # found labels that the photos did not have before the label sets learnt
    went: int = 0  # found labels that they had
    sidecars: int = 0  # written, changed or removed
    rejected: int = 0  # labels that the user has deleted as tags
    left_alone: int = 0  # sidecars of several photos, or read-only
    unwritten: int = 0  # sidecars that could not be written

    @property
    def seen(self) -> int:
        """Photos that this run has processed."""
        return self.tagged + self.failed + self.unread


async def run_bulk(job: BulkJob, report: Report) -> Totals:
    """Tags all photos that are not done yet; after an error the next run continues."""
    store, names, left_out = (
        open_earlier(job.photos) if job.from_results else open_photos(job.photos, job.exclude)
    )
    totals = Totals(left_out=left_out)
    async with run_pipeline(prepare_settings(job.settings)) as pipeline:
        selection = await pipeline.select(job.question)
        for note in selection.list_notes(pipeline.bundle.path):
            logger.warning("%s", note)
        tag = (
            prepare_answers(pipeline, selection, store)
            if isinstance(store, PartFolder)
            else partial(tag_photos, pipeline, selection, store)
        )
        question = describe_question(pipeline, selection, job.photos)
        with open_parts(job.out, question, selection.sets, add_new=job.add_new) as parts:
            parts.write_words(describe_words(selection))
            remaining, add = begin_run(job, parts, names, totals, report)
            records: list[Record] = []
            async for record in tag(remaining):
                if "unread" not in record:
                    records.append(record)
                if len(records) == job.part_size:
                    await asyncio.to_thread(parts.write, records)
                    records = []
                add([record])
            if records:
                await asyncio.to_thread(parts.write, records)
            end_run(parts, totals)
    return totals


def begin_run(
    job: BulkJob, parts: PartFolder, names: Sequence[str], totals: Totals, report: Report
) -> tuple[list[str], Callable[[Iterable[Record]], None]]:
    """Returns the photos to do, and a function that counts, reports and names those done."""
    unread = [name for name in names if not is_utf8(name)]
    names = [name for name in names if is_utf8(name)]
    if job.retry_failed:
        parts.forget_failed(names)
    done = parts.read_done()
    usable = [done[name] for name in names if name in done]
    remaining = [name for name in names if name not in done]
    to_do = len(remaining) + len(unread)

    def add(records: Iterable[Record]) -> None:
        for record in records:
            if "unread" in record:
                totals.unread += 1
                logger.error("%s was not read: %s", record["photo"], record["error"])
            elif "error" in record:
                totals.failed += 1
                logger.error("%s was not tagged: %s", record["photo"], record["error"])
            else:
                totals.tagged += 1
        report(totals.seen, to_do)

    totals.skipped = len(usable)
    totals.failed_before = usable.count(False)
    known = done if parts.earlier is None else parts.earlier.read_done()
    totals.gone = len(known.keys() - {*names})
    if parts.earlier is not None:
        if totals.gone > _MOST_GONE * len(known):
            raise StartError(
                f"{totals.gone} of {len(known)} photos of the results are missing, and would lose "
                "their tags there: mount their folder, or use another folder for the results"
            )
        logger.warning("label sets have learnt since; photos to tag again: %d", to_do)
    shown = (os.fsencode(name).decode("utf-8", "backslashreplace") for name in unread)
    reason = "its name is not UTF-8: rename the file"
    add([{"photo": name, "error": reason, "unread": True} for name in shown])
    return remaining, add


def end_run(parts: PartFolder, totals: Totals) -> None:
    """Puts results that are to replace others in their place, and counts the tags that changed."""
    if (earlier := parts.earlier) is None:
        return
    before, now = earlier.read_done(), parts.read_done()
    damaged = [name for name, is_usable in now.items() if before.get(name) and not is_usable]
    if damaged:
        logger.error("photos that had answers are damaged now: %s", list_names(damaged))
    if totals.unread or damaged:
        step = "repair these photos or leave them out, and run it again with --retry-failed"
        logger.error("the results stay as they were until all photos can be read: %s", step)
        return
    photos = before.keys() & now.keys()
    old, new = (_hash_found(each, photos) for each in (earlier, parts))
    totals.came, totals.went = np.setdiff1d(new, old).size, np.setdiff1d(old, new).size
    earlier.adopt_next()


def _hash_found(parts: PartFolder, photos: Collection[str]) -> NDArray[np.int64]:
    """Returns hashes of the photos' found labels: 8 bytes each, not a string."""
    rows = (row for row in parts.read_found() if row[0] in photos)
    return np.fromiter((hash((photo, name)) for photo, found in rows for name in found), np.int64)


def prepare_settings(settings: Settings) -> Settings:
    """Returns the settings with a queue and a deadline for throughput instead of latency."""
    changes = {"queue_size": _QUEUE_SIZE, "deadline_ms": _DEADLINE_MS}
    return settings.model_copy(update=changes)


def describe_question(pipeline: Pipeline, selection: Selection, location: str) -> dict[str, Any]:
    """Returns everything that the results depend on, as JSON values."""
    card, question = pipeline.bundle.card, selection.question
    encoder = {ENCODER: pipeline.bundle.encoder_fingerprint} if question.embedding else {}
    return {
        **encoder,
        FLAGGED: True,
        "model": {"name": card.name, "version": card.version},
        "precision": pipeline.engine.precision,
        "max_body_bytes": pipeline.settings.max_body_bytes,
        "max_pixels": pipeline.settings.max_pixels,
        # Not the versions: each store has its own.
        "label_sets": [_describe_set(labels, question) for labels in selection.sets],
        TEXTS: [describe_texts(labels) for labels in selection.sets],
        "question": question.model_dump(exclude_none=True),
        "photos": spell_place(location),
    }


def describe_words(selection: Selection) -> dict[str, Any]:
    """Returns parents, translation and all names of labels and of their parents, as JSON.

    A word that is also what another label is called now is none of its names: the user who deletes
    `beer` has not deleted `bear`, which is `beer` in Dutch.
    """
    described, lexicon, answered = dict[str, Any](), selection.words, set[str]()
    for labels in selection.sets:
        for name in labels.words.keys() - answered:  # else an earlier set answers it
            shown = labels.dictionary.translate(name, lexicon.lang or "")
            parents = labels.words[name].parents
            described[name] = {"parents": parents, "translation": shown or name}
        answered |= labels.positions.keys()
    for parent in {parent for row in [*described.values()] for parent in row["parents"]}:
        row = {"parents": (), "translation": lexicon.translate(parent)}
        described.setdefault(parent, row)
    called = Counter(word for name, row in described.items() for word in {name, row["translation"]})
    for name, row in described.items():
        known = [each.words[name] for each in lexicon.dictionaries if name in each.words]
        names = {word for each in known for word in (*each.aliases, *each.translations.values())}
        own = {name, row["translation"]}
        row["names"] = sorted({word for word in names if not called[word]} | own)
    return described


def _describe_set(labels: LabelSet, question: Question) -> dict[str, Any]:
    description: dict[str, Any] = {"name": labels.name, "digest": labels.digest}
    if question.parent:
        description["parents"] = hashlib.sha256(repr(labels.by_parent).encode()).hexdigest()
    if labels.categories:
        columns = repr(labels.categories).encode() + labels.thresholds.tobytes()
        description[CATEGORIES] = hashlib.sha256(columns).hexdigest()
    if labels.ranked:  # earlier versions answered by a threshold of 0.5
        description["ranked"] = True
    if labels.calibration is not None:  # a bundle that is calibrated again may keep its version
        columns = labels.calibration.tobytes() + labels.thresholds.tobytes()
        description["calibration"] = hashlib.sha256(columns).hexdigest()
    if (learnt := labels.learnt) is not None:
        lessons = [content for _, _, content in list_contents(labels.lessons)]
        parts = [learnt.positions.tobytes(), *lessons]
        description["examples"] = hashlib.sha256(b"".join(parts)).hexdigest()
    return description


def tag_photos(
    pipeline: Pipeline, selection: Selection, store: PhotoStore, names: Iterable[str]
) -> AsyncGenerator[Record]:
    """Yields the photos' records in order; one with `unread` is to be tried again."""
    engine = pipeline.engine
    in_batches = _CONCURRENT_BATCHES * engine.workers * engine.max_batch_size
    concurrency = min(max(_MIN_CONCURRENCY, in_batches), pipeline.settings.queue_size)
    works = (_tag_photo(pipeline, selection, store, name) for name in names)
    return run_in_order(works, concurrency)


async def _tag_photo(
    pipeline: Pipeline, selection: Selection, store: PhotoStore, name: str
) -> Record:
    limit = pipeline.settings.max_body_bytes
    try:
        data = await asyncio.to_thread(store.read, name, limit)
        if len(data) > limit:
            return {"photo": name, "error": f"The file is larger than {limit} bytes"}
        prediction = await pipeline.predict(data, selection)
    except OSError as error:
        return {"photo": name, "error": str(error), "unread": True}
    except (OutOfMemory, MemoryError):
        return {"photo": name, "error": "too little memory", "unread": True}
    except ImageError as error:
        return {"photo": name, "error": error.describe()}
    return make_record(name, prediction)
