"""`ml-decoder bulk IN OUT`: progress on stderr, totals on stdout; exit code 1 if some failed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.archive import ROOT
from service.cli.console import EXIT_SOME_FAILED, show_progress, write_json
from service.cli.options import ExcludedPaths, refuse_empty, require_extra
from service.errors import StartError, escape
from service.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.archive.sidecars import Change
    from service.cli.bulk.parts import PartFolder
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
        bool, typer.Option("--add-new", help="Tag what came since, or all if labels have learnt.")
    ] = False,
    xmp: Annotated[
        bool, typer.Option("--xmp", help="Write the labels to XMP sidecars beside the photos.")
    ] = False,
    xmp_root: Annotated[
        str,
        typer.Option(metavar="NAME", help="With --xmp: the tag above the labels; '' for none."),
    ] = ROOT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --xmp: write nothing, show what would change.")
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
    if (dry_run and ray) or (not xmp and (dry_run or xmp_root != ROOT or (moved and from_results))):
        raise StartError(
            "--dry-run, --xmp-root, and --photos with --from need --xmp; --dry-run takes no --ray"
        )
    question = question.model_copy(update={"embedding": embeddings or None})
    require_extra("bulk", "pyarrow", *["lxml"] * xmp)
    require_extra("ray", *["ray"] * ray)
    from service.cli.bulk.parts import copy_results, open_results
    from service.cli.bulk.run import BulkJob, run_bulk

    folder = _find_folder(photos, moved, from_results=from_results) if xmp else None
    root = _read_root(xmp_root)
    configure_logs("warning")  # a fallback to the CPU may cost hours
    changes: list[Change] = []
    with copy_results(out) if dry_run else nullcontext(out) as results:
        if moved and not from_results:
            open_results(results).move_photos(moved, photos)
            photos = moved
        if add_new:
            question = _repeat_question(question, open_results(results))
        job = BulkJob(
            *(photos, results, question, settings, part_size, retry_failed),
            *(tuple(exclude_path or ()), from_results, add_new),
        )
        with show_progress(results_on_stdout=False) as show:
            if ray:
                from service.cli.bulk.ray_run import run_bulk_on_ray

                totals = run_bulk_on_ray(job, workers, show)
            else:
                totals = asyncio.run(run_bulk(job, show))
        if folder is not None:
            from service.archive.sidecars import write_sidecars

            tagged = open_results(results)
            own = tagged.read_found(), root, tagged.read_words()
            counts, changes = write_sidecars(folder, *own, dry_run=dry_run)
            totals = replace(totals, **counts)
    _show(totals, changes if dry_run else None, as_json)
    if totals.failed or totals.unread or totals.unwritten:
        raise typer.Exit(EXIT_SOME_FAILED)


def _repeat_question(question: Question, earlier: PartFolder) -> Question:
    if question.model_dump(exclude_none=True):
        raise StartError(
            "--add-new asks as before: leave out --embeddings, --lang and choices of labels"
        )
    return question.model_validate(earlier.question["question"])


def _find_folder(location: str, moved: str | None, *, from_results: bool) -> Path:
    """Returns the real path of the photos; results of others could name any folder."""
    if from_results and not moved:
        raise StartError("--from with --xmp needs --photos, the folder of the photos")
    location = moved or location
    if "://" in location or not Path(location).is_dir():
        raise StartError(f"--xmp needs a local folder of photos; {location} is none")
    return Path(location).resolve()


def _read_root(name: str) -> tuple[str, ...]:
    levels = tuple(level.strip() for level in name.split("/")) if name else ()
    if "|" in name or not name.isprintable() or not all(levels):
        raise StartError(f"--xmp-root {name!r} must be a tag, as archive or archive/tags, or ''")
    return levels


def _show(totals: Totals, changes: Sequence[Change] | None, as_json: bool) -> None:
    if as_json:
        shown = {} if changes is None else {"changes": [change._asdict() for change in changes]}
        write_json(asdict(totals) | shown)
        return
    if changes is not None:
        sys.stdout.write("dry run: nothing is written\n")
    for change in changes or ():
        names = [*(f"+{name}" for name in change.added), *(f"-{name}" for name in change.removed)]
        sys.stdout.write(escape(f"{change.path}: {' '.join(names) or 'other fields'}") + "\n")
    written = "written" if changes is None else "to write"
    others = [
        (totals.failed_before, " ({} of them failed)"),
        (totals.unread, ", {} not read: run it again for them"),
        (totals.gone, ", {} gone"),
        (totals.came, ", {} tags came"),
        (totals.went, ", {} went" if totals.came else ", {} tags went"),
        (totals.sidecars, f", {{}} sidecars {written}"),
        (totals.rejected, ", {} deleted tags not written again"),
        (totals.left_alone, ", {} sidecars left alone"),
        (totals.unwritten, ", {} sidecars not written"),
    ]
    done = f"{totals.tagged} tagged, {totals.failed} failed, {totals.skipped} done before"
    sys.stdout.write("".join([done, *(text.format(n) for n, text in others if n), "\n"]))
