"""The console: what was found, as tables for people or JSON and CSV for programs.

In: a `LabelledPhoto`, a `Bundle`, a label set or a `Load`. Out: lines on stdout; progress and
failures go to stderr.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from service.bundle.card import Device

# Whoever has one of these to show has imported it; `--help` waits for none of them.
if TYPE_CHECKING:
    from service.bundle.card import Label
    from service.bundle.reader import Bundle
    from service.cli.load import Load
    from service.cli.photos import LabelledPhoto
    from service.labels.calibration import OperatingPoint
    from service.labels.label_set import LabelSet

_CSV_COLUMNS = ("photo", "label", "score", "threshold", "source", "calibrated", "error")
_LEGEND = Text("* not the label's own threshold", "dim")


class Format(StrEnum):
    """How `predict` writes what it found."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def write_every_name() -> None:
    """Makes stdout take names of files that its encoding cannot spell.

    Bytes that are no UTF-8 are written as they are, as `ls` does; in another encoding, what it has
    no letter for is spelled out. Else one such name would end a run of thousands of photos.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def write_json(record: dict[str, Any]) -> None:
    """Writes one JSON object on one line."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def dump_photo(photo: LabelledPhoto) -> dict[str, Any]:
    """Returns a photo's labels, or its failure, as JSON values."""
    record: dict[str, Any] = {"photo": str(photo.path)}
    if photo.prediction is None:
        return record | {"error": photo.failure}
    return record | photo.prediction.describe(map(str, photo.overlays))


def show_photo(photo: LabelledPhoto) -> None:
    """Shows a photo's labels as a table; a failure goes to stderr."""
    # `Text` keeps rich from reading markup into file names and labels.
    if photo.prediction is None:
        failure = Text.assemble((str(photo.path), "bold"), f": {photo.failure}")
        Console(stderr=True).print(failure, soft_wrap=True)
        return
    table = Table()
    table.add_column("label")
    table.add_column("score", justify="right")
    table.add_column("threshold", justify="right")
    for label in photo.prediction.labels:
        own = "" if label.calibrated else " *"
        table.add_row(Text(label.label), f"{label.score:.3f}", f"{label.threshold:.3f}{own}")
    console = Console()
    # Not as the title: that is broken into lines of the table's width, most paths are longer.
    console.print(Text(str(photo.path), "bold"), soft_wrap=True)
    console.print(table)
    if not all(label.calibrated for label in photo.prediction.labels):
        console.print(_LEGEND, soft_wrap=True)


def write_csv_head() -> None:
    """Writes the names of the columns of `write_csv`."""
    _write_row(_CSV_COLUMNS)


def write_csv(photo: LabelledPhoto) -> None:
    """Writes a row for each label of a photo; one without labels gets a row that says why."""
    path = str(photo.path)
    if photo.prediction is None:
        _write_row((path, "", "", "", "", "", photo.failure))
        return
    for label in photo.prediction.labels:
        own = "true" if label.calibrated else "false"
        score, threshold = f"{label.score:.6f}", f"{label.threshold:.6f}"
        _write_row((path, label.label, score, threshold, label.source, own, ""))
    if not photo.prediction.labels:
        _write_row((path, "", "", "", "", "", ""))
    sys.stdout.flush()


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[], None]]:
    """Shows a bar on stderr where a person watches; yields what is to be called at each step."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Where stdout is the same terminal, the results themselves show how far it is.
    hidden = not console.is_terminal or sys.stdout.isatty()
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        task = progress.add_task("photos", total=total)
        yield lambda: progress.advance(task)


def show_load(load: Load) -> None:
    """Shows the figures of a run of `bench`."""
    table = Table(show_header=False)
    for name, value in load.dump().items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), Text(text, justify="right"))
    Console().print(table)


def dump_bundle(bundle: Bundle) -> dict[str, Any]:
    """Returns a bundle's model card and labels as JSON values."""
    return {
        **bundle.card.model_dump(mode="json"),
        "precisions": list(bundle.precisions()),
        "default_precision": _find_defaults(bundle),
        "labels": [label.model_dump(mode="json") for label in bundle.labels],
    }


def show_bundle(bundle: Bundle) -> None:
    """Shows a bundle's model card and labels as tables."""
    console = Console()
    console.print(_card_table(bundle))
    console.print(_label_table(bundle))


def dump_label_set(labels: LabelSet) -> dict[str, Any]:
    """Returns a label set, without its labels, as JSON values."""
    return {
        "name": labels.name,
        "version": labels.version,
        "origin": labels.origin,
        "num_labels": len(labels.names),
    }


def show_label_sets(sets: Sequence[LabelSet]) -> None:
    """Shows label sets as a table."""
    table = Table("name", "version", "origin", "labels")
    for labels in sets:
        row = (labels.name, labels.version, labels.origin, str(len(labels.names)))
        table.add_row(*map(Text, row))
    Console().print(table)


def show_calibration(name: str, found: Mapping[str, OperatingPoint]) -> None:
    """Shows the thresholds that labels of a set got."""
    table = Table("label", "threshold", "precision", "recall", title=Text(name))
    for label, point in found.items():
        shares = (point.threshold, point.precision, point.recall)
        table.add_row(Text(label), *(f"{share:.3f}" for share in shares))
    Console().print(table)


def _write_row(values: Sequence[str | None]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerow(values)


def _card_table(bundle: Bundle) -> Table:
    card = bundle.card
    trained, opened = card.trained_head, card.open_head
    size = f"{card.input.width} x {card.input.height} pixels"
    rows = {
        "name": card.name,
        "version": card.version,
        "licence": card.license,
        "backbone": card.provenance.backbone,
        "training data": card.provenance.training_data,
        "trained head": "-" if trained is None else f"{trained.kind}, {trained.activation}",
        "open head": "-" if opened is None else f"{opened.kind}, {opened.embedding_space.encoder}",
        "input": f"{size}, {card.input.resize_mode}, {card.input.interpolation}",
        "precisions": ", ".join(bundle.precisions()),
        "default precision": _format_defaults(bundle),
    }
    for metric in card.metrics:
        where = f"{metric.dataset}, {metric.images} images"
        rows[f"{metric.name} {metric.precision}"] = f"{metric.value:.2f} ({where})"
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def _find_defaults(bundle: Bundle) -> dict[str, str]:
    """Returns the variant that `auto` means on each device, be it here or not."""
    devices: tuple[Device, ...] = get_args(Device)
    return {device: bundle.default_precision(device) for device in devices}


def _format_defaults(bundle: Bundle) -> str:
    defaults = _find_defaults(bundle)
    if defaults["openvino"] == "fp32":
        defaults["openvino"] = "fp32 (bf16 where the processor has it)"
    return ", ".join(f"{device} {precision}" for device, precision in defaults.items())


def _label_table(bundle: Bundle) -> Table:
    table = Table("label", "threshold", "precision", "recall", "positives")
    for label in bundle.labels:
        table.add_row(Text(label.name), *_format_calibration(label))
    return table


def _format_calibration(label: Label) -> tuple[str, ...]:
    shares = (label.threshold, label.precision, label.recall)
    texts = tuple("-" if share is None else f"{share:.3f}" for share in shares)
    return (*texts, "-" if label.positives is None else str(label.positives))
