"""The console: labelled photos and bundles as tables for people or JSON for programs.

In: a `LabelledPhoto` or a `Bundle`. Out: lines on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.bundle import Bundle
from service.calibration import Operating
from service.card import Label
from service.cli.photos import LabelledPhoto
from service.labels.label_set import LabelSet
from service.pipeline import Prediction
from service.scoring import ScoredLabel


def write_json(record: dict[str, Any]) -> None:
    """Writes one JSON object on one line."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def dump_photo(photo: LabelledPhoto) -> dict[str, Any]:
    """Returns a photo's labels, or its failure, as JSON values."""
    record: dict[str, Any] = {"photo": str(photo.path)}
    if photo.prediction is None:
        return record | {"error": photo.failure}
    found = photo.prediction
    return record | {
        "image": {"width": found.width, "height": found.height},
        "labels": [asdict(label) | where for label, where in _explain_each(photo, found)],
        "timings": asdict(found.timings),
    }


def _explain_each(
    photo: LabelledPhoto, found: Prediction
) -> Iterator[tuple[ScoredLabel, dict[str, Any]]]:
    """Yields each label with its map and the file of its overlay, where it has them."""
    made = zip_longest(found.labels, found.explanations, photo.overlays)
    for label, explanation, overlay in made:
        if explanation is None:
            yield label, {}
        else:
            yield label, {"map": explanation.list_cells(), "overlay": str(overlay)}


def show_photo(photo: LabelledPhoto) -> None:
    """Shows a photo's labels as a table; a failure goes to stderr."""
    # `Text` keeps rich from reading markup into file names and labels.
    if photo.prediction is None:
        failure = Text.assemble((str(photo.path), "bold"), f": {photo.failure}")
        Console(stderr=True).print(failure, soft_wrap=True)
        return
    table = Table(title=Text(str(photo.path)), title_justify="left")
    table.add_column("label")
    table.add_column("score", justify="right")
    table.add_column("threshold", justify="right")
    for label in photo.prediction.labels:
        own = "" if label.calibrated else " *"
        table.add_row(Text(label.label), f"{label.score:.3f}", f"{label.threshold:.3f}{own}")
    Console().print(table)


def dump_bundle(bundle: Bundle) -> dict[str, Any]:
    """Returns a bundle's model card and labels as JSON values."""
    return {
        **bundle.card.model_dump(mode="json"),
        "precisions": list(bundle.precisions()),
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


def show_calibration(name: str, found: Mapping[str, Operating]) -> None:
    """Shows the thresholds that labels of a set got."""
    table = Table("label", "threshold", "precision", "recall", title=Text(name))
    for label, point in found.items():
        shares = (point.threshold, point.precision, point.recall)
        table.add_row(Text(label), *(f"{share:.3f}" for share in shares))
    Console().print(table)


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
    }
    for metric in card.metrics:
        where = f"{metric.dataset}, {metric.images} images"
        rows[f"{metric.name} {metric.precision}"] = f"{metric.value:.2f} ({where})"
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def _label_table(bundle: Bundle) -> Table:
    table = Table("label", "threshold", "precision", "recall", "positives")
    for label in bundle.labels:
        table.add_row(Text(label.name), *_format_calibration(label))
    return table


def _format_calibration(label: Label) -> tuple[str, ...]:
    shares = (label.threshold, label.precision, label.recall)
    texts = tuple("-" if share is None else f"{share:.3f}" for share in shares)
    return (*texts, "-" if label.positives is None else str(label.positives))
