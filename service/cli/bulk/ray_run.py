"""A bulk run on a Ray cluster: Ray Data distributes names; each worker has a pipeline.

Workers read photos and write parts themselves, so photos and results must be reachable from every
node. If a worker dies, Ray computes its part again, and the part replaces itself.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray
import ray.data
import ray.exceptions

from service.bundle.card import CPU_DEVICES
from service.cli.bulk import run
from service.cli.bulk.parts import PartFolder, Record, open_parts
from service.cli.bulk.photo_store import PhotoStore, open_photos
from service.cli.local_pipeline import run_pipeline
from service.errors import StartError
from service.pipeline.pipeline import open_pipeline
from service.pipeline.selection import Selection
from service.settings import Settings

# More only lengthens the scheduler's list; fewer can leave workers idle.
_BLOCKS_PER_WORKER = 8


def run_bulk_on_ray(job: run.BulkJob, workers: int, report: run.Report) -> run.Totals:
    """Tags photos at `RAY_ADDRESS`, or locally, in at most `workers` processes; 0: all CPUs."""
    store, names, left_out = open_photos(job.photos, job.exclude)
    totals = run.Totals(left_out=left_out)
    job = replace(job, settings=_divide_settings(job.settings))
    question, selection = asyncio.run(_describe(job))
    with open_parts(job.out, question, selection.sets, add_new=job.add_new) as parts:
        parts.write_words(run.describe_words(selection))
        remaining, add = run.begin_run(job, parts, names, totals, report)
        if remaining:
            for part in _tag_on_ray(remaining, workers, (job, store, parts)):
                add(part)
        run.end_run(parts, totals)
    return totals


def _tag_on_ray(
    names: list[str], workers: int, arguments: tuple[run.BulkJob, PhotoStore, PartFolder]
) -> Iterator[list[Record]]:
    size, settings = arguments[0].part_size, arguments[0].settings
    chunks = [{"names": names[i : i + size]} for i in range(0, len(names), size)]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        with ray.init(log_to_driver=False, logging_level=logging.ERROR):
            cpus = settings.intra_op_threads
            gpus = 0 if settings.device in {"auto", *CPU_DEVICES} else 1
            capacity = sum(_count_workers(node["Resources"], cpus, gpus) for node in ray.nodes())
            if not capacity:
                needed = f"{cpus} CPUs and {gpus} GPUs of a worker"
                raise StartError(f"no node of the cluster has the {needed}")
            most = min(workers or capacity, len(chunks))
            blocks = min(len(chunks), most * _BLOCKS_PER_WORKER)
            ray.data.DataContext.get_current().enable_progress_bars = False
            parts = ray.data.from_items(chunks, override_num_blocks=blocks).map_batches(
                PartTagger,
                fn_constructor_args=arguments,
                batch_size=1,
                num_cpus=cpus,
                num_gpus=gpus,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
            )
            for row in parts.iter_rows():
                yield json.loads(row["records"])
    except ConnectionError as error:
        raise StartError("no Ray cluster found at RAY_ADDRESS: correct it, or unset it") from error
    except ray.exceptions.RayError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise StartError(f"a Ray worker failed: {reason}") from error


def _count_workers(resources: dict[str, float], cpus: int, gpus: int) -> int:
    by_cpu = int(resources.get("CPU", 0)) // cpus
    return min(by_cpu, int(resources.get("GPU", 0))) if gpus else by_cpu


class PartTagger:
    """A Ray worker with one pipeline; tags one part after the other."""

    def __init__(self, job: run.BulkJob, store: PhotoStore, parts: PartFolder) -> None:
        """Opens the pipeline; its model and label sets must be the driver's."""
        self._store = store
        self._parts = parts
        self._runner = asyncio.Runner()
        self._pipeline = open_pipeline(job.settings)
        self._runner.run(self._pipeline.start())
        self._selection = self._runner.run(self._pipeline.select(job.question))
        question = run.describe_question(self._pipeline, self._selection, parts.question["photos"])
        if replace(parts, question=question).describe_as(parts.question) != parts.question:
            raise StartError("a worker must have the driver's bundle, precision and label sets")

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Tags and writes the one part of a batch; returns its records without labels, as JSON."""
        (names,) = batch["names"]
        results = self._runner.run(self._tag([str(name) for name in names]))
        if records := [record for record in results if "unread" not in record]:
            self._parts.write(records)
        kept = ("photo", "error", "unread")
        told = [{key: record[key] for key in kept if key in record} for record in results]
        return {"records": [json.dumps(told)]}

    async def _tag(self, names: list[str]) -> list[Record]:
        tagging = run.tag_photos(self._pipeline, self._selection, self._store, names)
        return [record async for record in tagging]


def _divide_settings(settings: Settings) -> Settings:
    # By default a worker would use all cores of its machine; Ray gives it a few.
    threads = settings.intra_op_threads or 1
    changes = {
        "bundle": settings.bundle.absolute(),
        "intra_op_threads": threads,
        "decode_threads": settings.decode_threads or threads,
    }
    return run.prepare_settings(settings.model_copy(update=changes))


async def _describe(job: run.BulkJob) -> tuple[dict[str, Any], Selection]:
    async with run_pipeline(job.settings) as pipeline:
        selection = await pipeline.select(job.question)
        return run.describe_question(pipeline, selection, job.photos), selection
