"""The command line: `ml-decoder serve`, `predict`, `labels`, `info` and `export`.

In: arguments and `ML_DECODER_*` variables. Out: text for people or JSON lines for
programs, and an exit code: 0 done, 1 some photo has no labels, 2 cannot start, 3 broke. Next:
`server.py` for `serve`, `photos.py` for `predict`, `labels.py` for `labels`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from service.bundle import BundleError, load_bundle
from service.cli import labels
from service.cli.console import dump_bundle, dump_photo, show_bundle, show_photo, write_json
from service.cli.flags import add_setting_flags
from service.cli.photos import label_photos
from service.errors import ServiceBroken, ServiceError, StartError, StoreIncompatible
from service.http.parameters import Parameters, merge_parameters
from service.http.problems import describe_problem
from service.http.server import configure_logs, run_server
from service.selection import Query
from service.settings import Settings

EXIT_SOME_FAILED = 1
EXIT_CANNOT_START = 2
EXIT_BROKE = 3

# The settings that matter where there is no server.
_PREDICT_SETTINGS = (
    *("bundle", "device", "precision", "intra_op_threads", "max_pixels"),
    *("label_store", "label_sets", "default_label_set"),
)

app = typer.Typer(
    name="ml-decoder",
    help="Multi-label tags for photos, by ML-Decoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line; an error that a person can mend is one line on stderr."""
    try:
        app()
    except (StartError, BundleError, StoreIncompatible) as error:
        _fail(str(error))
    except ServiceBroken as error:
        _fail(str(error), EXIT_BROKE)
    except ServiceError as error:
        problem = describe_problem(error)
        values = [f"{value.name}: {value.reason}" for value in problem.errors or ()]
        _fail("; ".join(values) or ": ".join(filter(None, (problem.title, problem.detail))))


def serve(settings: Settings) -> None:
    """Answer predictions over HTTP until SIGTERM or Ctrl+C."""
    run_server(settings)


def predict(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    photos: Annotated[list[Path], typer.Argument(help="Image files.", show_default=False)],
    top_k: Annotated[str | None, typer.Option(metavar="INT", help="Most labels a photo.")] = None,
    threshold: Annotated[
        str | None, typer.Option(metavar="SCORE", help="Least score, 0 to 1, or: calibrated.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only this; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Never this; repeatable.")] = None,
    label_set: Annotated[list[str] | None, typer.Option(help="From this set; repeatable.")] = None,
    candidate_label: Annotated[
        list[str] | None, typer.Option(help="A label for this call alone; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a photo.")] = False,
) -> None:
    """Label photos with the service's own pipeline, without a server."""
    asked = {
        "top_k": top_k,
        "threshold": threshold,
        "include": include,
        "exclude": exclude,
        "label_set": label_set,
        "candidate_labels": candidate_label,
    }
    given = {name: value for name, value in asked.items() if value not in (None, [])}
    query = merge_parameters(Parameters(), given)
    configure_logs("error")
    if not asyncio.run(_predict_all(photos, query, settings, as_json)):
        raise typer.Exit(EXIT_SOME_FAILED)


def info(
    bundle: Annotated[Path, typer.Argument(help="Folder of the bundle.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Verify a bundle and show its model card."""
    verified = load_bundle(bundle)
    if as_json:
        write_json(dump_bundle(verified))
    else:
        show_bundle(verified)


def export(context: typer.Context) -> None:
    """Make a bundle from a checkpoint; `--help` shows the options of `python -m export`."""
    if any(importlib.util.find_spec(module) is None for module in ("torch", "export")):
        raise StartError("export needs torch: pip install 'ml-decoder-serve[export]'")
    # Run by name: the service itself must not import what needs torch.
    sys.argv = ["ml-decoder export", *context.args]
    runpy.run_module("export", run_name="__main__", alter_sys=True)


async def _predict_all(photos: list[Path], query: Query, settings: Settings, as_json: bool) -> bool:
    complete = True
    async for photo in label_photos(photos, query, settings):
        if as_json:
            write_json(dump_photo(photo))
        else:
            show_photo(photo)
        complete = complete and photo.prediction is not None
    return complete


def _fail(reason: str, code: int = EXIT_CANNOT_START) -> NoReturn:
    sys.stderr.write(f"ml-decoder: {' '.join(reason.split())}\n")
    raise SystemExit(code)


_PASS_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command()(add_setting_flags(serve))
app.command()(add_setting_flags(predict, _PREDICT_SETTINGS))
app.add_typer(labels.app, name="labels")
app.command()(info)
app.command(context_settings=_PASS_ON, add_help_option=False)(export)
