"""Label sets on the command line: `ml-decoder labels add`, `list`, `remove`, `calibrate`.

In: arguments and settings. Out: the label store, changed; a service that runs on the same store
sees it within its `label_poll_seconds`. Next: `catalogue.py`, the same that serves HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from service.bundle import load_bundle
from service.calibration import Operating
from service.cli.calibrating import calibrate_set
from service.cli.console import (
    dump_label_set,
    show_calibration,
    show_label_sets,
    write_json,
)
from service.cli.flags import add_setting_flags
from service.errors import StartError
from service.labels.catalogue import Catalogue
from service.labels.definition import Definition, LabelSetRecord, define_label_set
from service.labels.files import read_label_set_file
from service.labels.label_set import LabelSet
from service.labels.opening import open_catalogue
from service.logs import configure_logs
from service.settings import Settings

ResultT = TypeVar("ResultT")

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
        Path | None, typer.Option(help="Labels as .json or .npz, instead of --label.")
    ] = None,
    replace: Annotated[bool, typer.Option(help="Replace a set of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a label set; a running service on the same store has it within two seconds.

    ml-decoder labels add zoo --label 'red panda' --label bamboo
    """
    definition = _define(name, label, file)

    async def write(catalogue: Catalogue) -> LabelSet:
        register = catalogue.replace if replace else catalogue.register
        return (await register(definition))[0]

    _show([_run(settings, write)], as_json)


def list_sets(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the label sets of the model, the bundle, the folder and the store."""

    async def load(catalogue: Catalogue) -> tuple[LabelSet, ...]:
        await catalogue.start()
        await catalogue.refresh()  # unlike a service, a list without the store's sets is no use
        return catalogue.list_sets()

    _show(_run(settings, load), as_json)


def remove(*, settings: Settings, name: Name) -> None:
    """Delete a label set from the store."""
    _run(settings, lambda catalogue: catalogue.delete(name))


def calibrate(
    *,
    settings: Settings,
    name: Name,
    photos: Annotated[
        Path, typer.Option(help="Folder with labels.json and images/.", show_default=False)
    ],
    split: Annotated[str | None, typer.Option(help="Only photos of this split.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set the thresholds of a registered set (best F1) from labelled photos.

    ml-decoder labels calibrate zoo --photos FOLDER --split val
    """
    configure_logs("error")
    found: dict[str, Operating] = asyncio.run(calibrate_set(settings, name, photos, split))
    if as_json:
        write_json({"name": name, "thresholds": {k: v.threshold for k, v in found.items()}})
    else:
        show_calibration(name, found)


def _define(name: str, names: list[str] | None, file: Path | None) -> Definition:
    if bool(names) == (file is not None):
        raise StartError("labels add takes either --label or --file")
    if file is not None:
        return read_label_set_file(file, name)
    try:
        return define_label_set(LabelSetRecord.model_validate({"name": name, "labels": names}))
    except ValidationError as error:
        raise StartError(error.errors(include_url=False)[0]["msg"]) from error


def _run(settings: Settings, work: Callable[[Catalogue], Awaitable[ResultT]]) -> ResultT:
    configure_logs("error")
    catalogue = open_catalogue(settings, load_bundle(settings.bundle))

    async def run() -> ResultT:
        async with _stopping(catalogue):
            return await work(catalogue)

    return asyncio.run(run())


@asynccontextmanager
async def _stopping(catalogue: Catalogue) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await catalogue.stop()


def _show(sets: tuple[LabelSet, ...] | list[LabelSet], as_json: bool) -> None:
    if not as_json:
        show_label_sets(sets)
        return
    for labels in sets:
        write_json(dump_label_set(labels))


app.command()(add_setting_flags(add, _STORE_SETTINGS))
app.command("list")(add_setting_flags(list_sets, _STORE_SETTINGS))
app.command()(add_setting_flags(remove, _STORE_SETTINGS))
app.command()(add_setting_flags(calibrate, _CALIBRATE_SETTINGS))
