"""`ml-decoder bulk IN OUT`: progress on stderr, totals on stdout; exit code 1 if some failed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.console import EXIT_SOME_FAILED, show_progress, write_json
from service.cli.options import ExcludedPaths, refuse_empty
from service.errors import StartError
from service.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.cli.bulk.run import Totals
    from service.question import Question

BULK_SETTINGS = (
    *("bundle", "device", "cuda_options", "precision", "intra_op_threads", "decode_threads"),
    *("max_batch_size", "max_pixels", "max_body_bytes"),
    *("label_store", "label_sets", "default_label_set"),
)


def bulk(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    photos: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Folder, or text file with one photo per line; or a URL.",
            parser=refuse_empty,
        ),
    ],
    out: Annotated[
        str,
        typer.Argument(metavar="OUT", help="Folder of the results, or a URL.", parser=refuse_empty),
    ],
    question: Question,
    exclude_path: ExcludedPaths = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Add a column with the photos' embeddings.")
    ] = False,
    from_results: Annotated[
        bool,
        typer.Option(
            "--from", help="IN is the OUT of a run with --embeddings: answer without its photos."
        ),
    ] = False,
    add_new: Annotated[
        bool, typer.Option("--add-new", help="Tag what came since, with the labels of OUT.")
    ] = False,
    xmp: Annotated[
        bool, typer.Option("--xmp", help="Write the labels to XMP sidecars beside the photos.")
    ] = False,
    moved: Annotated[
        str | None,
        typer.Option("--photos", metavar="FOLDER", help="Where the photos are now, if they moved."),
    ] = None,
    part_size: Annotated[int, typer.Option(min=1, help="Photos per Parquet file.")] = 1000,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry photos that could not be used.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Run on a Ray cluster.")] = False,
    workers: Annotated[
        int, typer.Option(min=0, help="With --ray: most processes; 0 = as many as fit the CPUs.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Totals as one JSON object.")] = False,
) -> None:
    """Tag a folder, a list or an object store of photos into Parquet files; resumable.

    ml-decoder bulk IN OUT --embeddings

    ml-decoder bulk --from OUT MORE --label-set mugs
    """
    if from_results and (embeddings or exclude_path or ray):
        raise StartError("--from takes no --embeddings, --exclude-path or --ray")
    question = question.model_copy(update={"embedding": embeddings or None})
    _require("pyarrow", "bulk")
    _require("ray", "ray", ray)
    _require("lxml", "bulk", xmp)
    from service.cli.bulk.parts import open_results
    from service.cli.bulk.run import BulkJob, Totals, run_bulk

    if moved:
        results = open_results(photos if from_results else out)
        results.move_photos(moved, moved if from_results else photos)
        photos = photos if from_results else moved
    if add_new:
        question = _read_question(question, out)
    if xmp:
        from service.cli.bulk.sidecars import find_folder, write_sidecars

        folder = find_folder(photos, from_results=from_results)
    configure_logs("warning")  # a fallback to the CPU may cost hours
    exclude = tuple(exclude_path or ())
    job = BulkJob(photos, out, question, settings, part_size, retry_failed, exclude, from_results)
    with show_progress(results_on_stdout=False) as show:
        if ray:
            from service.cli.bulk.ray_run import run_bulk_on_ray

            totals = run_bulk_on_ray(job, workers, show)
        else:
            totals = asyncio.run(run_bulk(job, show))
    if xmp:
        totals.add(Totals(**write_sidecars(out, folder)))
    _show(totals, as_json)
    if totals.failed or totals.unread or totals.unwritten:
        raise typer.Exit(EXIT_SOME_FAILED)


def _read_question(question: Question, out: str) -> Question:
    from service.cli.bulk.parts import open_results

    if question.model_dump(exclude_none=True):
        raise StartError("--add-new asks as before: leave out --embeddings and choices of labels")
    return question.model_validate(open_results(out).question["question"])


def _show(totals: Totals, as_json: bool) -> None:
    if as_json:
        write_json(asdict(totals))
        return
    others = [
        (totals.failed_before, " ({} of them failed)"),
        (totals.unread, ", {} not read: run it again for them"),
        (totals.gone, ", {} gone"),
        (totals.sidecars, ", {} sidecars written"),
        (totals.unwritten, ", {} sidecars not written"),
    ]
    done = f"{totals.tagged} tagged, {totals.failed} failed, {totals.skipped} done before"
    sys.stdout.write("".join([done, *(text.format(n) for n, text in others if n), "\n"]))


def _require(package: str, extra: str, needed: bool = True) -> None:
    if needed and importlib.util.find_spec(package) is None:
        raise StartError(f"bulk needs {package}: pip install -e '.[{extra}]' in the checkout")
