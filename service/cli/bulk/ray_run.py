"""A bulk run on a Ray cluster: the same parts as `run.py` writes, by Ray Data's workers.

In: a `BulkJob`. Out: Parquet parts and `Totals`. Names of photos travel through Ray Data, a part
at a time; each worker keeps a pipeline open, reads the photos of its part from where they are
and files the records itself. A part that Ray computes twice, after a worker died, replaces
itself. Folders have to be reachable from every node: shared, or in an object store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import ray
import ray.data
import ray.exceptions

from service.bundle.card import CPU_DEVICES
from service.cli.bulk.parts import PartFolder, Record, open_parts
from service.cli.bulk.photos import PhotoStore, open_photos
from service.cli.bulk.run import BulkJob, Report, Totals, find_left
from service.cli.bulk.tagging import describe_question, prepare_settings, tag_photos
from service.errors import StartError
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.selection import Selection
from service.settings import Settings

# More would only be a longer list for the scheduler; fewer could leave workers idle.
_BLOCKS_PER_WORKER = 8


def run_bulk_on_ray(job: BulkJob, workers: int, report: Report) -> Totals:
    """Tags all photos that are not done yet, on the cluster of `RAY_ADDRESS`, else on a new one.

    Args:
        job: what to tag and where to; `intra_op_threads` are the CPUs of one worker, 1 by
            default.
        workers: processes at once; 0 is as many as the cluster's CPUs allow.
        report: called after each part.

    Raises:
        StartError: photos, results, pipeline or cluster cannot be used as asked, or a worker
            failed; what was filed stays, and the next run goes on.
        BundleError: the bundle is absent, damaged or inconsistent.
        ServiceError: the question does not fit the label sets.
    """
    store, names, left_out = open_photos(job.photos)
    job = replace(job, settings=_divide_settings(job.settings))
    question = asyncio.run(_describe(job))
    with open_parts(job.out, question) as parts:
        left, totals = find_left(job, parts, names)
        totals.left_out = left_out
        report(totals, len(left))
        if left:
            with_what = (job, store, parts)
            for part in _tag_on_ray(left, workers, with_what):
                totals.add(part)
                report(totals, len(left))
        return totals


def _tag_on_ray(
    names: list[str], workers: int, with_what: tuple[BulkJob, PhotoStore, PartFolder]
) -> Iterator[Totals]:
    """Yields what came of each part."""
    size, settings = with_what[0].part_size, with_what[0].settings
    chunks = [{"names": names[i : i + size]} for i in range(0, len(names), size)]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        with ray.init(log_to_driver=False, logging_level=logging.ERROR):
            cpus, gpus = settings.intra_op_threads, _count_gpus(settings)
            fit = sum(_count_places(node["Resources"], cpus, gpus) for node in ray.nodes())
            if not fit:
                raise StartError(f"no node of the cluster has a worker's {cpus} CPUs, {gpus} GPUs")
            most = min(workers or fit, len(chunks))
            ray.data.DataContext.get_current().enable_progress_bars = False
            blocks = min(len(chunks), most * _BLOCKS_PER_WORKER)
            counted = ray.data.from_items(chunks, override_num_blocks=blocks).map_batches(
                PartTagger,
                fn_constructor_args=with_what,
                batch_size=1,
                num_cpus=cpus,
                num_gpus=gpus,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
            )
            for row in counted.iter_rows():
                yield Totals(**{name: int(count) for name, count in row.items()})
    except ConnectionError as error:
        raise StartError("no Ray cluster answers at RAY_ADDRESS") from error
    except ray.exceptions.RayError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise StartError(f"a Ray worker failed: {reason}") from error


def _count_gpus(settings: Settings) -> int:
    return 0 if settings.device in {"auto", *CPU_DEVICES} else 1


def _count_places(resources: dict[str, float], cpus: int, gpus: int) -> int:
    """Returns how many workers a node has room for."""
    by_cpu = int(resources.get("CPU", 0)) // cpus
    return min(by_cpu, int(resources.get("GPU", 0))) if gpus else by_cpu


class PartTagger:
    """A Ray worker: one pipeline, which tags one part after the other."""

    def __init__(self, job: BulkJob, store: PhotoStore, parts: PartFolder) -> None:
        """Opens the pipeline.

        Raises:
            StartError: it would not answer the question that the run was begun with.
        """
        self._store = store
        self._parts = parts
        self._runner = asyncio.Runner()
        self._pipeline, self._selection = self._runner.run(_open(job))
        if describe_question(self._pipeline, self._selection, job.photos) != parts.question:
            raise StartError("a worker has another bundle, precision or label sets than the driver")

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[int]]:
        """Tags and files the parts of a batch; returns the totals of each, a column a figure."""
        counts: dict[str, list[int]] = {}
        for names in batch["names"]:
            found = self._runner.run(self._tag([str(name) for name in names]))
            totals = Totals()
            for record in found:
                totals.count(record)
            if records := [record for record in found if record is not None]:
                self._parts.write(records)
            for figure, count in asdict(totals).items():
                counts.setdefault(figure, []).append(count)
        return counts

    async def _tag(self, names: list[str]) -> list[Record | None]:
        tagging = tag_photos(self._pipeline, self._selection, self._store, names)
        return [record async for record in tagging]


def _divide_settings(settings: Settings) -> Settings:
    # A worker would take all cores of its machine, where Ray gives it a few.
    threads = settings.intra_op_threads or 1
    own = {
        "bundle": settings.bundle.absolute(),
        "intra_op_threads": threads,
        "decode_threads": settings.decode_threads or threads,
    }
    return prepare_settings(settings.model_copy(update=own))


async def _open(job: BulkJob) -> tuple[Pipeline, Selection]:
    pipeline = open_pipeline(job.settings)
    await pipeline.start()
    return pipeline, await pipeline.select(job.question)


async def _describe(job: BulkJob) -> dict[str, Any]:
    pipeline, selection = await _open(job)
    try:
        return describe_question(pipeline, selection, job.photos)
    finally:
        await pipeline.drain()
