"""`ml-decoder labels`: the label store without a server."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.console import EXIT_SOME_FAILED, show_failure, write_json
from service.cli.options import OneObject, add_flags, path_argument, path_option, require_extra
from service.errors import LabelSetChanged, LabelSetExists, StartError, escape, list_names
from service.fields import validate
from service.files import replace_file
from service.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.cli.local_pipeline import PhotoResult
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
Language = Annotated[str | None, typer.Option(metavar="TAG", help="Language of words, as de.")]
_REPLACE = "Replace a set of this name; says what it loses, and asks on a terminal."
Replace = Annotated[bool, typer.Option(help=_REPLACE)]
_PRECISE = "Take the lowest threshold with this precision (0 to 1), instead of best F1."
PrecisionTarget = Annotated[float | None, typer.Option(min=0.0, max=1.0, help=_PRECISE)]


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
    lang: Language = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Register a label set, or add labels to it; services load it within label_poll_seconds.

    A name, alias or, with --lang, translation of a label of the bundle adds that label.

    ml-decoder labels add zoo --label 'red panda' --label bamboo
    """
    given, language = _define_set(settings, name, label, file), _read_language(lang)

    async def write(catalogue: Catalogue) -> tuple[LabelSet, dict[str, int]]:
        sets, there = catalogue.writable(name), None
        if not replace:
            await sets.refresh(adopt=True)
            there = sets.by_name.get(name)
        definition, resolved = catalogue.adopt_words(given, language, there.names if there else ())
        sys.stderr.writelines(f"{escape(': '.join(pair))}\n" for pair in resolved.items())
        if replace:
            return await _register(catalogue, definition, replace=True), {}
        labels, added = await sets.add(definition)
        return labels, {"added": added, "repeated": len(definition.names) - added}

    labels, counts = _run(settings, write)
    _show([labels], as_json, **counts)


def list_sets(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the label sets of the model, the bundle, the folder and the store."""
    _show(_run(settings, _load).list_sets(), as_json)


def show(
    *, settings: Settings, name: Name, lang: Language = None, as_json: OneObject = False
) -> None:
    """Show the labels of a set; with --json, as `GET /labels/NAME` answers."""
    _show_labels(_run(settings, _load).find(name), as_json, lang=_read_language(lang))


def threshold(
    *,
    settings: Settings,
    name: Name,
    label: Annotated[str, typer.Argument(help="A label of the set.", show_default=False)],
    value: Annotated[str, typer.Argument(help="0 to 1, or the word default.", show_default=False)],
    as_json: OneObject = False,
) -> None:
    """Set the threshold of a label of a registered set.

    ml-decoder labels threshold zoo bamboo 0.4
    """
    from service.labels.definition import LabelThreshold

    given = {"name": label, "threshold": None if value == "default" else value}
    wanted = validate(LabelThreshold, given, "command line")
    thresholds = {wanted.name: wanted.threshold}
    labels = _run(settings, lambda sets: sets.writable(name).calibrate(name, thresholds))
    _show_labels(labels, as_json, wanted.name)


def remove(*, settings: Settings, name: Name) -> None:
    """Delete a label set from the store."""
    _run(settings, lambda catalogue: catalogue.writable(name).delete(name))


def calibrate(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    name: Name,
    photos: Annotated[Path, path_option("PATH", "Folder with labels.json and images/.")],
    split: Annotated[str | None, typer.Option(help="Only photos of this split.")] = None,
    precision_target: PrecisionTarget = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate the scores of a registered set, and set its thresholds, from labelled photos.

    ml-decoder labels calibrate zoo --photos FOLDER --split val
    """
    from service.cli.calibrate import calibrate_set

    configure_logs("error")
    work = calibrate_set(settings, name, photos, split, precision_target, as_json=as_json)
    try:
        _end_with(asyncio.run(work))
    except LabelSetChanged as error:
        reason = f"{name} was changed while its photos were scored; calibrate it again"
        raise StartError(reason) from error


def learn(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    name: Name,
    photos: Annotated[
        Path, path_argument("PHOTOS", "Folder; without tags, a subfolder for each label.")
    ],
    from_tags: Annotated[
        bool, typer.Option("--from-tags", help="Learn from keywords and sidecars of the photos.")
    ] = False,
    tags: Annotated[
        Path | None,
        path_option("FILE", "Learn from a table: a .csv with path,tags or path,tag; labels.json."),
    ] = None,
    level: Annotated[
        str, typer.Option(help="Level of tags that is the label: last, path (all), or 1, 2, ...")
    ] = "last",
    only: Annotated[list[str] | None, typer.Option(help="Only these tags; a pattern.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Not these tags; a pattern, as 'People/*'.")
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="Fewest photos of a tag.")] = 5,
    lang: Language = None,
    trust_kept: Annotated[
        bool, typer.Option("--trust-kept", help="Tags that bulk wrote and you kept count as yours.")
    ] = False,
    keep_all: Annotated[
        bool, typer.Option("--all", help="Keep tags that cannot be told apart, too.")
    ] = False,
    precision_target: PrecisionTarget = None,
    report: Annotated[
        Path | None, path_option("FILE", "Write a page (.html) with photos of each tag.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what tags would teach, and write nothing.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Of subfolders: forget what the labels had learnt.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per label.")] = False,
) -> None:
    """Learn labels from photos: from your tags, or from a subfolder for each label.

    ml-decoder labels learn archive PHOTOS --from-tags --report tags.html

    ml-decoder labels learn mugs FOLDER
    """
    from service.question import Question

    configure_logs("error")
    question = validate(Question, {"label_set": [name], "lang": lang}, "command line")
    if not from_tags and tags is None:
        choices = only or exclude or trust_kept or lang or (level, least) != ("last", 5)
        if choices or keep_all or dry_run or report or precision_target is not None:
            raise StartError("options of tags need --from-tags or --tags")
        from service.cli.learn import learn_folder

        work = learn_folder(settings, name, photos, replace=replace, as_json=as_json)
    else:
        if replace or (from_tags and tags is not None):
            raise StartError("--from-tags, --tags and --replace exclude each other")
        require_extra("bulk", *["lxml"] * from_tags)
        from service.archive.choice import TagChoice
        from service.cli.learn_tags import TagLesson, learn_tags

        choice = TagChoice(level, only or (), exclude or (), least, trust_kept)
        options = question.lang, precision_target, keep_all, report, dry_run, as_json
        work = learn_tags(settings, name, TagLesson(photos, tags, choice, *options))
    _end_with(asyncio.run(work))


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
        (definition, embeddings, _), others = await sets.read_definition(name)
        for label in others:
            sys.stderr.write(f"left out: {label} learnt from photos with another model\n")
        if definition.given and catalogue.encoders is not None:  # texts are encoded again
            space = catalogue.encoders.head.embedding_space.fingerprint
            definition = replace_fields(definition, embedding_space=space)
        return pack_label_set(definition, embeddings)

    if file.suffix != ".npz":
        raise StartError(f"{file}: the name must end in .npz")
    content = _run(settings, pack)
    try:
        replace_file(file, content, keep=True, mode=0o600)  # the mode of a new store
    except OSError as error:
        raise StartError(f"{file} was not written: {error.strerror or error}") from error


def import_set(
    *,
    settings: Settings,
    file: Annotated[Path, path_argument("FILE", "An .npz; its name is that of the set.")],
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Register the set of a file that `labels export` wrote, with what it has learnt."""
    if file.suffix != ".npz":
        raise StartError(f"{file}: the name must end in .npz; labels add reads other files")
    definition = _define_set(settings, file.stem, None, file)
    try:
        labels = _run(settings, lambda sets: _register(sets, definition, replace=replace))
    except LabelSetExists as error:
        reason = f"another label set is called {file.stem}; --replace replaces it"
        raise StartError(reason) from error
    if unused := definition.lessons.keys() - labels.lessons.keys():
        reason = "learnt with another model, or next to another text: it is not used"
        sys.stderr.write(f"what {len(unused)} labels of the file know was {reason}\n")
    _show([labels], as_json)


def _define_set(
    settings: Settings, name: str, names: list[str] | None, file: Path | None
) -> Definition:
    from service.labels.definition import LabelSetRecord
    from service.labels.files import read_label_set_file

    if bool(names) == (file is not None):
        raise StartError("labels add takes either --label or --file")
    if file is not None:
        return read_label_set_file(file, name, settings.max_labels_per_set)
    given = {"name": name, "labels": names}
    return validate(LabelSetRecord, given, "command line").define()


def _read_language(lang: str | None) -> str | None:
    from service.question import Question

    return validate(Question, {"lang": lang}, "command line").lang


async def _register(catalogue: Catalogue, definition: Definition, *, replace: bool) -> LabelSet:
    """Registers a set; names what another loses to it, and asks first on a terminal."""
    sets, version = catalogue.writable(definition.name), None
    await sets.refresh(adopt=True)
    if replace and definition.name in sets.by_name:  # else there is none, or a damaged one
        (old, _, version), others = await sets.read_definition(definition.name)
        if losses := _list_losses(old, others, definition):
            sys.stderr.write(f"{old.name} loses {'; '.join(losses)}\n")
            if sys.stdin.isatty() and sys.stderr.isatty():
                signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's ends no prompt
                typer.confirm("Replace it?", abort=True, err=True)
    labels, _ = await sets.register(definition, replace=replace, if_version=version)
    return labels


def _list_losses(old: Definition, others: Sequence[str], new: Definition) -> list[str]:
    """Returns what a set loses to a new one; labels in `others` learnt with other encoders."""
    from service.labels.definition import LabelRow
    from service.labels.sources.learnt import list_contents

    after = new.lessons if new.lessons and new.encoder == old.encoder else old.lessons
    kept = {*list_contents(after)}
    changed = [
        row[0] for row in list_contents(old.lessons) if row not in kept or row[0] not in new.rows
    ]
    lost = {
        "labels": [name for name in old.names if name not in new.rows],
        "examples of": [*dict.fromkeys(changed), *(n for n in others if n not in new.rows)],
        "calibration of": [old.name] * (old.calibration not in (None, new.calibration)),
    }
    lost["words of"] = [n for n in old.words if n in new.rows and old.words[n] != new.words.get(n)]
    for place, what in enumerate(LabelRow._fields):
        pairs = ((n, row[place], new.rows.get(n, row)[place]) for n, row in old.rows.items())
        lost[f"{what} of"] = [name for name, mine, its in pairs if mine not in (None, its)]
    return [f"{what} {list_names(names)}" for what, names in lost.items() if names]


async def _load(catalogue: Catalogue) -> Catalogue:
    await catalogue.start()
    await catalogue.refresh()  # raises if the store fails; a service starts without it
    return catalogue


def _run(settings: Settings, work: Callable[[Catalogue], Awaitable[ResultT]]) -> ResultT:
    from service.bundle.reader import load_bundle
    from service.labels.catalogue import open_catalogue
    from service.labels.store.database import is_memory
    from service.pipeline.loading import open_encoders

    configure_logs("error")
    if is_memory(settings.label_store):
        sys.stderr.write("the label store is memory: nothing is kept after this command\n")
    bundle = load_bundle(settings.bundle)
    catalogue = open_catalogue(settings, bundle, open_encoders(settings, bundle))

    async def run() -> ResultT:
        try:
            return await work(catalogue)
        finally:
            await catalogue.stop()

    return asyncio.run(run())


def _end_with(left_out: Sequence[PhotoResult]) -> None:
    """Shows why photos were left out, which the exit code says too."""
    for photo in left_out:
        show_failure(photo)
    if left_out:
        raise typer.Exit(EXIT_SOME_FAILED)


def _show_labels(
    labels: LabelSet, as_json: bool, wanted: str | None = None, lang: str | None = None
) -> None:
    from service.labels.words import Lexicon

    spoken = Lexicon((labels.dictionary,)).speak(lang)
    described = labels.describe()
    rows = [*described["labels"]]
    if as_json:
        write_json({**described, "labels": rows})
        return
    words = {
        label["name"]: spoken.translate(label["name"]) if spoken.lang else _join_words(label)
        for label in rows
    }
    columns = ["translation" if spoken.lang else "words"] * any(words.values())
    table = Table("label", *columns, "threshold", "prompt", "learnt", "category")
    for label in rows:
        if wanted in (None, label["name"]):
            least = f"{label['threshold']:.3g}{'' if label['calibrated'] else ' (default)'}"
            prompt = "(embedding)" if label["own_embedding"] else label["prompt"] or ""
            learnt = []
            if fit := label.get("fit"):
                counts = f"{fit['positive']:,} of {fit['photos']:,} tagged photos"
                text = fit["text_ap"]
                note = "" if text is None else f" (text {text:.2f})"
                learnt.append(f"{counts}; AP {fit['learnt_ap']:.2f}{note}")
            if known := label.get("examples"):
                counts = f"{known['positive']}, {known['negative']} negative"
                learnt.append(f"{counts}; {known['separation']['meaning']}")
            cells = [label["name"], *[words.get(label["name"], "")] * len(columns), least, prompt]
            table.add_row(*map(Text, (*cells, "\n".join(learnt), label.get("category", ""))))
    Console().print(table)


def _join_words(label: Mapping[str, Any]) -> str:
    """Returns all words of a label: `also sofa; in furniture; de Sofa; fr canapé`."""
    also, path = ", ".join(label.get("aliases", ())), " > ".join(label.get("parents", ())[::-1])
    parts = [("also", also), ("in", path), *label.get("translations", {}).items()]
    return "; ".join(f"{key} {value}" for key, value in parts if value)


def _show(sets: Sequence[LabelSet], as_json: bool, **counts: int) -> None:
    table = Table("name", "version", "origin", "labels")
    for labels in sets:
        record = {key: getattr(labels, key) for key in ("name", "version", "origin", "num_labels")}
        if as_json:
            write_json(record | counts)
        table.add_row(*(Text(str(value)) for value in record.values()))
    if as_json:
        return
    Console().print(table)
    if counts:
        added, repeated = counts.values()
        Console().print(f"{added} added, {repeated} {'was' if repeated == 1 else 'were'} there")


app.command()(add_flags(add, _STORE_SETTINGS))
app.command("list")(add_flags(list_sets, _STORE_SETTINGS))
app.command()(add_flags(show, _STORE_SETTINGS))
app.command()(add_flags(threshold, _STORE_SETTINGS))
app.command()(add_flags(remove, _STORE_SETTINGS))
app.command()(add_flags(calibrate, _CALIBRATE_SETTINGS))
app.command()(add_flags(learn, _CALIBRATE_SETTINGS))
app.command("export")(add_flags(export_set, _STORE_SETTINGS))
app.command("import")(add_flags(import_set, _STORE_SETTINGS))
