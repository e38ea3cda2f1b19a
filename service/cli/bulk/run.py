"""The story of a bulk run in one process: photos -> what is left to do -> records -> parts.

In: a `BulkJob`. Out: Parquet parts and `Totals`. It drives the service's own pipeline, so scores
are those that clients see. Next: `ray_run.py`, which does the same on many machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from service.cli.bulk.parts import PartFolder, Record, open_parts
from service.cli.bulk.photos import open_photos
from service.cli.bulk.tagging import describe_question, prepare_settings, tag_photos
from service.labels.question import Question
from service.pipeline.pipeline import open_pipeline
from service.settings import Settings

Report = Callable[["Totals", int], None]
"""Called after each photo, or each part where Ray runs them: what there is so far, and how many
photos this run has to tag."""


@dataclass(frozen=True)
class BulkJob:
    """What to tag and where to.

    Attributes:
        photos: folder or list, a path or a URL.
        out: folder of the results, a path or a URL.
        question: what is asked of every photo.
        settings: of the pipeline.
        part_size: photos in one file; a run that is killed tags at most so many again.
        retry_failed: whether photos that could not be used are tried again.
    """

    photos: str
    out: str
    question: Question
    settings: Settings
    part_size: int
    retry_failed: bool = False


@dataclass
class Totals:
    """What came of a run.

    Attributes:
        tagged: photos that got labels in this run.
        failed: photos of this run that cannot be used; their rows say why.
        skipped: photos that an earlier run had done.
        unread: photos whose files could not be read; the next run tries them again.
        failed_before: of those that an earlier run had done, how many cannot be used.
        left_out: files of the folder that are not taken for photos.
    """

    tagged: int = 0
    failed: int = 0
    skipped: int = 0
    unread: int = 0
    failed_before: int = 0
    left_out: int = 0

    @property
    def seen(self) -> int:
        """Photos that this run is through with."""
        return self.tagged + self.failed + self.unread

    def add(self, part: Totals) -> None:
        """Adds what came of some of the photos."""
        for figure in fields(self):
            both = getattr(self, figure.name) + getattr(part, figure.name)
            setattr(self, figure.name, both)

    def count(self, record: Record | None) -> None:
        """Counts what `tag_photos` gave for a photo."""
        if record is None:
            self.unread += 1
        elif record["error"] is None:
            self.tagged += 1
        else:
            self.failed += 1


def find_left(job: BulkJob, parts: PartFolder, names: Sequence[str]) -> tuple[list[str], Totals]:
    """Returns which of these photos are to be tagged, and what earlier runs have done of the rest.

    Raises:
        StartError: a part cannot be read.
        OSError: it cannot be written.
    """
    if job.retry_failed:
        parts.forget_failed(names)
    done = parts.read_done()
    usable = [done[name] for name in names if name in done]
    totals = Totals(skipped=len(usable), failed_before=usable.count(False))
    return [name for name in names if name not in done], totals


async def run_bulk(job: BulkJob, report: Report) -> Totals:
    """Tags all photos that are not done yet.

    Raises:
        StartError: photos, results or pipeline cannot be used as asked.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceError: the question does not fit the label sets, or the model cannot be run; what
            was filed stays, and the next run goes on.
    """
    store, names, left_out = open_photos(job.photos)
    pipeline = open_pipeline(prepare_settings(job.settings))
    await pipeline.start()
    try:
        selection = await pipeline.select(job.question)
        with open_parts(job.out, describe_question(pipeline, selection, job.photos)) as parts:
            left, totals = find_left(job, parts, names)
            totals.left_out = left_out
            report(totals, len(left))
            records: list[Record] = []
            async for record in tag_photos(pipeline, selection, store, left):
                totals.count(record)
                if record is not None:
                    records.append(record)
                if len(records) == job.part_size or (records and totals.seen == len(left)):
                    await asyncio.to_thread(parts.write, records)
                    records = []
                report(totals, len(left))
            return totals
    finally:
        await pipeline.drain()
