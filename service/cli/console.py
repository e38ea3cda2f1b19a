"""Results on stdout, as tables or as JSON and CSV; progress and failures on stderr."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from service.bundle.card import Device

# For annotations alone: each command imports its own, and `--help` needs none.
if TYPE_CHECKING:
    from service.bundle.card import (
        HeadCalibration,
        Label,
        ModelCard,
        OpenHead,
        Screen,
        TrainedHead,
        Triple,
    )
    from service.bundle.reader import Bundle
    from service.cli.bench import Load
    from service.cli.calibrate import CalibrationReport
    from service.cli.photos import PhotoResult
    from service.labels.label_set import LabelSet

EXIT_SOME_FAILED = 1

_CSV_COLUMNS = ("photo", "label", "score", "threshold", "source", "calibrated", "error")
# https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# The precision that `auto` takes on processors that lack or have certain instructions.
_OTHER_PROCESSORS = {
    ("openvino", "fp32"): " (bf16 where the processor has it)",
    ("openvino", "int8"): " (fp32 without VNNI)",
    ("cpu", "int8"): " (fp32 without VNNI)",
}
_LEGEND = Text("* not the label's own threshold", "dim")


class Format(StrEnum):
    """Output formats of `predict`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def accept_all_file_names() -> None:
    """Makes stdout accept file names that its encoding cannot represent.

    UTF-8 writes their bytes unchanged, as `ls` does; other encodings write escapes. Otherwise one
    such name would end a run of thousands of photos.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def write_json(record: dict[str, Any]) -> None:
    """Writes one JSON object on one line."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def describe_photo(photo: PhotoResult) -> dict[str, Any]:
    """Returns a photo's labels, or its failure, as JSON values."""
    if photo.prediction is None:
        return {"photo": str(photo.path), "error": photo.failure}
    return {"photo": str(photo.path), **photo.prediction.describe(map(str, photo.overlays))}


def show_photo(photo: PhotoResult) -> None:
    """Shows a photo's labels as a table; a failure goes to stderr."""
    # `Text`, because rich reads markup in plain strings.
    if photo.prediction is None:
        show_failure(photo)
        return
    table = Table()
    table.add_column("label")
    table.add_column("score", justify="right")
    table.add_column("threshold", justify="right")
    for label in photo.prediction.labels:
        own = "" if label.calibrated else " *"
        table.add_row(Text(label.label), f"{label.score:.3f}", f"{label.threshold:.3f}{own}")
    console = Console()
    # A title would be wrapped to the table's width.
    console.print(Text(str(photo.path), "bold"), soft_wrap=True)
    if not photo.prediction.labels:
        console.print("no label reaches the threshold", style="dim")
        return
    console.print(table)
    if not all(label.calibrated for label in photo.prediction.labels):
        console.print(_LEGEND, soft_wrap=True)


def show_failure(photo: PhotoResult) -> None:
    """Shows on stderr the reason why a photo has no labels."""
    failure = Text.assemble((str(photo.path), "bold"), f": {photo.failure}")
    Console(stderr=True).print(failure, soft_wrap=True)


def write_csv_head() -> None:
    """Writes the names of the columns of `write_csv`."""
    _write_row(_CSV_COLUMNS)


def write_csv(photo: PhotoResult) -> None:
    """Writes a row for each label of a photo, or one row if it has none."""
    path = str(photo.path)
    labels = () if photo.prediction is None else photo.prediction.labels
    for label in labels:
        own = "true" if label.calibrated else "false"
        score, threshold = f"{label.score:.6f}", f"{label.threshold:.6f}"
        _write_row((path, label.label, score, threshold, label.source, own, ""))
    if not labels:
        _write_row((path, "", "", "", "", "", photo.failure or ""))
    sys.stdout.flush()


@contextmanager
def show_progress(*, results_on_stdout: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr if it is a terminal; yields a function of photos done and in total.

    Args:
        results_on_stdout: hides the bar if stdout is a terminal too, as results show progress.
    """
    console = Console(stderr=True)
    columns = (
        *(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}")),
        TimeRemainingColumn(),
    )
    hidden = not console.is_terminal or (results_on_stdout and sys.stdout.isatty())
    with Progress(
        *columns, console=console, disable=hidden, transient=results_on_stdout
    ) as progress:
        task = progress.add_task("", total=None, speed="")

        def report(done: int, total: int) -> None:
            speed = progress.tasks[0].speed
            text = "" if speed is None else f"{speed:.0f} photos/s"
            progress.update(task, completed=done, total=total, speed=text)

        yield report


def show_load(load: Load) -> None:
    """Shows the measurements of `bench`."""
    values = {
        name.replace("_", " "): json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in load.describe().items()
    }
    _show_pairs(values, justify="right")


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Returns a bundle's model card and labels as JSON values."""
    return {
        **bundle.card.model_dump(mode="json"),
        "precisions": list(bundle.precisions()),
        "default_precision": _find_defaults(bundle),
        "labels": [label.model_dump(mode="json") for label in bundle.labels],
    }


def show_bundle(bundle: Bundle) -> None:
    """Shows a bundle's model card and labels as tables."""
    card = bundle.card
    trained, opened = card.trained_head, card.open_head
    size = f"{card.input.width} x {card.input.height} pixels"
    values = {
        "name": card.name,
        "version": card.version,
        "licence": card.license,
        "backbone": card.provenance.backbone,
        "prefix tokens": card.provenance.prefix_tokens or "-",
        "training data": card.provenance.training_data,
        "trained head": "-" if trained is None else _describe_head(trained),
        "open head": "-"
        if opened is None
        else f"{_describe_head(opened)}, {opened.embedding_space.encoder}",
        "input": f"{size}, {card.input.resize_mode}, {card.input.interpolation}",
        "mean": _format_channels(card.input.mean),
        "std": _format_channels(card.input.std),
        "precisions": ", ".join(bundle.precisions()),
        "default precision": ", ".join(
            f"{device} {name}{_OTHER_PROCESSORS.get((device, name), '')}"
            for device, name in _find_defaults(bundle).items()
        ),
    }
    for name, calibration in _list_calibrations(card).items():
        values[f"scores of {name}"] = _describe_scores(calibration)
    if opened is not None and opened.screen is not None:
        values["screen"] = _describe_screen(opened.screen)
    for metric in card.metrics:
        measured = f"{metric.value:.2f} ({metric.dataset}, {metric.images} images)"
        values[f"{metric.name} {metric.precision}"] = measured
    _show_pairs(values)
    table = Table("label", "threshold", "precision", "recall", "positives")
    for label in bundle.labels:
        table.add_row(Text(label.name), *_format_calibration(label))
    Console().print(table)
    for name, calibration in _list_calibrations(card).items():
        if calibration is not None:
            table = Table("score", "pairs", "mean score", "right", title=Text(f"scores of {name}"))
            for place, each in enumerate(calibration.bins):
                shares = (each.mean_score, each.share_right) if each.scores else ()
                table.add_row(
                    f"{place / 10:.1f} to {(place + 1) / 10:.1f}",
                    str(each.scores),
                    *(f"{share:.3f}" for share in shares),
                )
            Console().print(table)


def _describe_head(head: TrainedHead | OpenHead) -> str:
    least = f"threshold {head.threshold:g} unless a label has its own"
    return f"{head.kind}, {head.activation}, {least}"


def _describe_screen(screen: Screen) -> str:
    return (
        f"scores {screen.scored:.0f} of {screen.names:,} labels, finds "
        f"{100 * screen.best_found:.2f} % of the 20 best and {100 * screen.above_found:.2f} % of "
        f"those above their thresholds ({screen.dataset}, {screen.images} images)"
    )


def _format_channels(values: Triple | None) -> str:
    return "-" if values is None else ", ".join(f"{value:g}" for value in values)


def _list_calibrations(card: ModelCard) -> dict[str, HeadCalibration | None]:
    found = {}
    if card.trained_head is not None:
        found["trained labels"] = card.trained_head.calibration
    if card.open_head is not None:
        found["open labels"] = card.open_head.calibration
    return found


def _describe_scores(calibration: HeadCalibration | None) -> str:
    if calibration is None:
        return "as the checkpoint gives them, not calibrated"
    before, after = calibration.error_before, calibration.error_after
    photos = f"{calibration.images} photos of {calibration.dataset}"
    return f"calibrated on {photos}: error {after:.3f}, {before:.3f} before"


def describe_label_set(labels: LabelSet) -> dict[str, Any]:
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
        table.add_row(*(Text(str(value)) for value in describe_label_set(labels).values()))
    Console().print(table)


def describe_calibration(found: CalibrationReport) -> dict[str, Any]:
    """Returns the results of a calibration as JSON values."""
    fit = found.fit
    calibration = None
    if fit is not None:
        calibration = {
            **fit.pair.model_dump(),
            "error_before": fit.error_before,
            "error_after": fit.error_after,
        }
    return {
        "calibration": calibration,
        "thresholds": {label: point.threshold for label, point in found.points.items()},
        "not_reached": list(found.not_reached),
        "left_out": len(found.left_out),
    }


def show_calibration(name: str, found: CalibrationReport) -> None:
    """Shows the results of a calibration of a label set."""
    table = Table("label", "threshold", "precision", "recall", title=Text(name))
    for label, point in found.points.items():
        shares = (point.threshold, point.precision, point.recall)
        table.add_row(Text(label), *(f"{share:.3f}" for share in shares))
    for label in found.not_reached:
        table.add_row(Text(label), "-", "not reached", "-")
    console = Console()
    console.print(table)
    scores = "scores as before: the photos are too few, or do not show it better"
    if found.fit is not None:
        scores = f"scores: {found.fit.figures}"
    console.print(Text(scores), soft_wrap=True)
    if left_out := len(found.left_out):
        photos = "photo" if left_out == 1 else "photos"
        console.print(Text(f"{left_out} {photos} left out"), soft_wrap=True)


def _write_row(values: Sequence[str]) -> None:
    """Writes a line of CSV; an apostrophe before a formula keeps spreadsheets from running it."""
    row = io.StringIO()
    csv.writer(row).writerow(f"'{v}" if v.startswith(_FORMULA_STARTS) else v for v in values)
    # Python 3.11 quotes `\r` in a text only if the line ends with it too.
    sys.stdout.write(row.getvalue().removesuffix("\r\n") + "\n")


def _show_pairs(values: Mapping[str, str], justify: Literal["left", "right"] = "left") -> None:
    table = Table(show_header=False)
    for name, value in values.items():
        table.add_row(Text(name), Text(value, justify=justify))
    Console().print(table)


def _find_defaults(bundle: Bundle) -> dict[str, str]:
    """Returns the variant that `auto` means on each device."""
    devices: tuple[Device, ...] = get_args(Device)
    return {device: bundle.default_precision(device) for device in devices}


def _format_calibration(label: Label) -> tuple[str, ...]:
    shares = (label.threshold, label.precision, label.recall)
    texts = tuple("-" if share is None else f"{share:.3f}" for share in shares)
    return (*texts, "-" if label.positives is None else str(label.positives))
