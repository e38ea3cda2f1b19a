"""`ml-decoder labels`: the label store without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.console import EXIT_SOME_FAILED, show_failure, write_json
from service.cli.options import add_flags, path_argument, path_option
from service.errors import LabelSetChanged, LabelSetExists, StartError
from service.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.labels.catalogue import Catalogue
    from service.labels.definition import Definition
    from service.labels.label_set import LabelSet

ResultT = TypeVar("ResultT")

_STORE_SETTINGS = (
    *("bundle", "label_store", "label_sets", "intra_op_threads"),
    *("max_label_sets", "max_labels", "max_labels_per_set"),
)
_CALIBRATE_SETTINGS = (*_STORE_SETTINGS, "device", "precision", "max_pixels")

app = typer.Typer(invoke_without_command=True)


@app.callback()
def show_help(context: typer.Context) -> None:
    """Your own label sets, in the label store."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Name = Annotated[str, typer.Argument(help="Name of the label set.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per set.")]


def add(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    name: Name,
    label: Annotated[list[str] | None, typer.Option(help="One label; repeatable.")] = None,
    file: Annotated[
        Path | None,
        path_option(
            "PATH", "Labels as .txt (a name a line), .csv, .json or .npz, instead of --label."
        ),
    ] = None,
    replace: Annotated[bool, typer.Option(help="Replace a set of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register a label set; services on the same store load it within label_poll_seconds.

    ml-decoder labels add zoo --label 'red panda' --label bamboo
    """
    definition = _define_set(name, label, file)
    try:
        added, _ = _run(
            settings, lambda sets: sets.writable(name).register(definition, replace=replace)
        )
    except LabelSetExists as error:
        raise StartError(f"another label set is called {name}; --replace replaces it") from error
    _show([added], as_json)


def list_sets(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the label sets of the model, the bundle, the folder and the store."""

    async def load(catalogue: Catalogue) -> tuple[LabelSet, ...]:
        await catalogue.start()
        await catalogue.refresh()  # raises if the store fails; a service starts without it
        return catalogue.list_sets()

    _show(_run(settings, load), as_json)


def remove(*, settings: Settings, name: Name) -> None:
    """Delete a label set from the store."""
    _run(settings, lambda catalogue: catalogue.writable(name).delete(name))


def calibrate(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    name: Name,
    photos: Annotated[Path, path_option("PATH", "Folder with labels.json and images/.")],
    split: Annotated[str | None, typer.Option(help="Only photos of this split.")] = None,
    precision_target: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Take the lowest threshold with this precision (0 to 1), instead of best F1.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate the scores of a registered set, and set its thresholds, from labelled photos.

    ml-decoder labels calibrate zoo --photos FOLDER --split val
    """
    from service.cli.calibrate import calibrate_set, describe_calibration, show_calibration

    configure_logs("error")
    try:
        calibrated = asyncio.run(calibrate_set(settings, name, photos, split, precision_target))
    except LabelSetChanged as error:
        reason = f"{name} was changed while its photos were scored; calibrate it again"
        raise StartError(reason) from error
    for photo in calibrated.left_out:
        show_failure(photo)
    if as_json:
        write_json({"name": name, **describe_calibration(calibrated)})
    else:
        show_calibration(name, calibrated)
    if calibrated.left_out:
        raise typer.Exit(EXIT_SOME_FAILED)


def learn(
    *,
    settings: Settings,
    name: Name,
    folder: Annotated[Path, path_argument("FOLDER", "A subfolder of photos for each label.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Forget earlier photos of the labels.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per label.")] = False,
) -> None:
    """Learn labels from photos; a subfolder is a label. Adds labels and set if they are missing.

    ml-decoder labels learn mugs FOLDER
    """
    from service.cli.learn import learn_folder

    configure_logs("error")
    work = learn_folder(settings, name, folder, replace=replace, as_json=as_json)
    if not asyncio.run(work):
        raise typer.Exit(EXIT_SOME_FAILED)


def export_set(
    *,
    settings: Settings,
    name: Name,
    file: Annotated[Path, path_argument("FILE", "The .npz to write.")],
) -> None:
    """Write a registered set with its vectors and what it has learnt, for `labels import`."""
    from service.labels.files import pack_label_set

    async def pack(catalogue: Catalogue) -> bytes:
        sets = catalogue.writable(name)
        definition, embeddings, others = await sets.read_definition(name)
        for label in others:
            sys.stderr.write(f"left out: the examples of {label} are of another model\n")
        if definition.given and catalogue.encoders is not None:  # texts are encoded again
            space = catalogue.encoders.head.embedding_space.fingerprint
            definition = replace_fields(definition, embedding_space=space)
        return pack_label_set(definition, embeddings)

    if file.suffix != ".npz":
        raise StartError(f"{file}: the name must end in .npz")
    content = _run(settings, pack)
    try:
        file.write_bytes(content)
    except OSError as error:
        raise StartError(f"{file}: {error.strerror or 'cannot be written'}") from error


def import_set(
    *,
    settings: Settings,
    file: Annotated[Path, path_argument("FILE", "An .npz; its name is that of the set.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a set of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Register the set of a file that `labels export` wrote, with what it has learnt."""
    if file.suffix != ".npz":
        raise StartError(f"{file}: the name must end in .npz; labels add reads other files")
    add(settings=settings, name=file.stem, file=file, replace=replace, as_json=as_json)


def _define_set(name: str, names: list[str] | None, file: Path | None) -> Definition:
    from service.bundle.card import format_first_error
    from service.labels.definition import LabelSetRecord, define_label_set
    from service.labels.files import read_label_set_file

    if bool(names) == (file is not None):
        raise StartError("labels add takes either --label or --file")
    if file is not None:
        return read_label_set_file(file, name)
    try:
        return define_label_set(LabelSetRecord.model_validate({"name": name, "labels": names}))
    except ValidationError as error:
        raise StartError(format_first_error(error)) from error


def _run(settings: Settings, work: Callable[[Catalogue], Awaitable[ResultT]]) -> ResultT:
    from service.bundle.reader import load_bundle
    from service.labels.catalogue import open_catalogue
    from service.pipeline.loading import open_encoders

    configure_logs("error")
    bundle = load_bundle(settings.bundle)
    catalogue = open_catalogue(settings, bundle, open_encoders(settings, bundle))

    async def run() -> ResultT:
        try:
            return await work(catalogue)
        finally:
            await catalogue.stop()

    return asyncio.run(run())


def _show(sets: Sequence[LabelSet], as_json: bool) -> None:
    table = Table("name", "version", "origin", "labels")
    for labels in sets:
        about = {"name": labels.name, "version": labels.version, "origin": labels.origin}
        record = about | {"num_labels": len(labels.names)}
        if as_json:
            write_json(record)
        table.add_row(*(Text(str(value)) for value in record.values()))
    if not as_json:
        Console().print(table)


app.command()(add_flags(add, _STORE_SETTINGS))
app.command("list")(add_flags(list_sets, _STORE_SETTINGS))
app.command()(add_flags(remove, _STORE_SETTINGS))
app.command()(add_flags(calibrate, _CALIBRATE_SETTINGS))
app.command()(add_flags(learn, _CALIBRATE_SETTINGS))
app.command("export")(add_flags(export_set, _STORE_SETTINGS))
app.command("import")(add_flags(import_set, _STORE_SETTINGS))
