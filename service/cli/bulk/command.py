"""Bulk on the command line: `ml-decoder bulk IN OUT`.

In: arguments and settings. Out: Parquet files, a progress bar on stderr, totals on stdout, and
an exit code: 0 all photos have labels, 1 some have none. Next: `service/cli/bulk/run.py`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.cli.console import write_json
from service.cli.paths import refuse_empty
from service.cli.questions import (
    CandidateLabels,
    Exclude,
    Include,
    LabelSets,
    Threshold,
    TopK,
    make_question,
)
from service.errors import StartError
from service.http.telemetry.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.cli.bulk.run import Report, Totals

EXIT_SOME_FAILED = 1

BULK_SETTINGS = (
    *("bundle", "device", "precision", "intra_op_threads", "decode_threads", "max_batch_size"),
    *("max_pixels", "max_body_bytes", "label_store", "label_sets", "default_label_set"),
)


def bulk(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    photos: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Folder, or text file with one photo a line; or a URL.",
            parser=refuse_empty,
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(metavar="OUT", help="Folder of the results, or a URL.", parser=refuse_empty),
    ],
    top_k: TopK = None,
    threshold: Threshold = None,
    include: Include = None,
    exclude: Exclude = None,
    label_set: LabelSets = None,
    candidate_label: CandidateLabels = None,
    part_size: Annotated[int, typer.Option(min=1, help="Photos in one Parquet file.")] = 1000,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try photos again that could not be used.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Work on a Ray cluster.")] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="With --ray: processes at once; 0 = what the CPUs allow.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Totals as one JSON object.")] = False,
) -> None:
    """Tag a folder, a list or an object store of photos into Parquet files; resumable."""
    _require("pyarrow", "bulk")
    if ray:
        _require("ray", "ray")
    # Not before: the service runs without pyarrow and Ray.
    from service.cli.bulk.run import BulkJob, run_bulk

    question = make_question(
        top_k=top_k,
        threshold=threshold,
        include=include,
        exclude=exclude,
        label_set=label_set,
        candidate_labels=candidate_label,
    )
    configure_logs("warning")  # hours on the CPU, for a GPU that is not found, must not be silent
    job = BulkJob(photos, out, question, settings, part_size, retry_failed)
    with _show_progress() as report:
        if ray:
            from service.cli.bulk.ray_run import run_bulk_on_ray

            totals = run_bulk_on_ray(job, workers, report)
        else:
            totals = asyncio.run(run_bulk(job, report))
    _show_totals(totals, as_json)
    if totals.failed or totals.unread or totals.failed_before:
        raise typer.Exit(EXIT_SOME_FAILED)


def _require(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise StartError(f"bulk needs {package}: pip install 'ml-decoder-serve[{extra}]'")


@contextmanager
def _show_progress() -> Iterator[Report]:
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}")),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None, speed="")

        def report(totals: Totals, to_do: int) -> None:
            speed = progress.tasks[0].speed
            text = "" if speed is None else f"{speed:.0f} photos/s"
            progress.update(task, completed=totals.seen, total=to_do, speed=text)

        yield report


def _show_totals(totals: Totals, as_json: bool) -> None:
    if as_json:
        write_json(asdict(totals))
        return
    before = f" ({totals.failed_before} of them failed)" if totals.failed_before else ""
    unread = f", {totals.unread} not read: run it again for them" if totals.unread else ""
    sys.stdout.write(
        f"{totals.tagged} tagged, {totals.failed} failed, {totals.skipped} done before{before}"
        f"{unread}\n"
    )
