"""Label sets on the command line: `ml-decoder labels add`, `list`, `remove`, `calibrate`.

In: arguments and settings. Out: the label store, changed; a service that runs on the same store
sees it within its `label_poll_seconds`. Next: `label_store.py`, `calibrating.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.console import dump_label_set, show_calibration, show_label_sets, write_json
from service.cli.options import add_setting_flags
from service.cli.paths import read_path
from service.errors import LabelSetChanged, LabelSetExists, StartError
from service.http.telemetry.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.labels.label_set import LabelSet

_STORE_SETTINGS = (
    *("bundle", "label_store", "label_sets", "intra_op_threads"),
    *("max_label_sets", "max_labels", "max_labels_per_set"),
)
_CALIBRATE_SETTINGS = (*_STORE_SETTINGS, "device", "precision", "max_pixels")

app = typer.Typer(invoke_without_command=True)


@app.callback()
def show_help(context: typer.Context) -> None:
    """Label sets of your own, in the label store."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Name = Annotated[str, typer.Argument(help="Name of the label set.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a set.")]


def add(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    name: Name,
    label: Annotated[list[str] | None, typer.Option(help="A label; repeatable.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Labels as .json or .npz, instead of --label.", parser=read_path
        ),
    ] = None,
    replace: Annotated[bool, typer.Option(help="Replace a set of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a label set; a running service on the same store has it soon (label_poll_seconds).

    ml-decoder labels add zoo --label 'red panda' --label bamboo
    """
    from service.cli.label_store import add_set, define_set

    try:
        added = add_set(settings, define_set(name, label, file), replace=replace)
    except LabelSetExists as error:
        raise StartError(f"another label set is called {name}; --replace replaces it") from error
    _show([added], as_json)


def list_sets(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the label sets of the model, the bundle, the folder and the store."""
    from service.cli.label_store import load_sets

    _show(load_sets(settings), as_json)


def remove(*, settings: Settings, name: Name) -> None:
    """Delete a label set from the store."""
    from service.cli.label_store import remove_set

    remove_set(settings, name)


def calibrate(
    *,
    settings: Settings,
    name: Name,
    photos: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="Folder with labels.json and images/.",
            parser=read_path,
            show_default=False,
        ),
    ],
    split: Annotated[str | None, typer.Option(help="Only photos of this split.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set the thresholds of a registered set (best F1) from labelled photos.

    ml-decoder labels calibrate zoo --photos FOLDER --split val
    """
    from service.cli.calibrate import calibrate_set

    configure_logs("error")
    try:
        found = asyncio.run(calibrate_set(settings, name, photos, split))
    except LabelSetChanged as error:
        reason = f"{name} was changed while its photos were scored; calibrate it again"
        raise StartError(reason) from error
    if as_json:
        write_json({"name": name, "thresholds": {k: v.threshold for k, v in found.items()}})
    else:
        show_calibration(name, found)


def _show(sets: Sequence[LabelSet], as_json: bool) -> None:
    if not as_json:
        show_label_sets(sets)
        return
    for labels in sets:
        write_json(dump_label_set(labels))


app.command()(add_setting_flags(add, _STORE_SETTINGS))
app.command("list")(add_setting_flags(list_sets, _STORE_SETTINGS))
app.command()(add_setting_flags(remove, _STORE_SETTINGS))
app.command()(add_setting_flags(calibrate, _CALIBRATE_SETTINGS))
