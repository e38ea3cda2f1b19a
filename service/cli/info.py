"""`ml-decoder info`: a bundle's model card and labels, as tables or JSON."""

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.bundle.card import RANKED, Device, HeadCalibration, Label, OpenHead, TrainedHead
from service.bundle.reader import Bundle
from service.calibration import MIN_POSITIVES
from service.cli.console import show_pairs
from service.errors import escape
from service.fields import Purpose

# The precision that `auto` takes on processors that lack or have certain instructions.
_OTHER_PROCESSORS = {
    ("openvino", "fp32"): " (bf16 where the processor has it)",
    ("openvino", "int8"): " (fp32 without VNNI)",
    ("cpu", "int8"): " (fp32 without VNNI)",
}
_MAX_ROWS = 5000  # a table of 10,861 labels takes 5 seconds


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Returns a bundle's model card and labels as JSON values."""
    return {
        **bundle.card.model_dump(mode="json"),
        "precisions": list(bundle.precisions()),
        "default_precision": _find_defaults(bundle),
        "labels": [label.model_dump(mode="json") for label in bundle.labels],
    }


def show_bundle(bundle: Bundle) -> None:
    """Shows the main parts of a bundle's model card, and its labels, as tables."""
    heads = {"trained labels": bundle.card.trained_head, "open labels": bundle.card.open_head}
    calibrations = {name: head.calibration for name, head in heads.items() if head is not None}
    metrics = {
        f"{metric.name} {metric.precision}": (
            f"{metric.value:.2f} ({metric.dataset}, {metric.images} images)"
        )
        for metric in bundle.card.metrics
    }
    scores = {f"scores of {name}": _describe_scores(c) for name, c in calibrations.items()}
    for name, head in heads.items():
        for word, point in (head.by_purpose if head else {}).items():
            scores[f"{name}, {word}"] = (
                f"precision {point.precision:.2f}, recall {point.recall:.2f}, "
                f"{_describe_least(point.threshold)}"
            )
    if bundle.card.open_head is not None and bundle.card.open_head.ranked:
        scores["scores of open labels"] = RANKED.format(bundle.path)
    show_pairs(_describe_card(bundle) | scores | metrics)
    trained = bundle.card.trained_head
    _show_labels(bundle.labels, trained.by_purpose if trained else ())


def _describe_card(bundle: Bundle) -> dict[str, str]:
    card = bundle.card
    trained, opened, about = card.trained_head, card.open_head, card.background
    encoder = "" if opened is None else f", {opened.embedding_space.encoder}"
    defaults = (
        f"{device} {name}{_OTHER_PROCESSORS.get((device, name), '')}"
        for device, name in _find_defaults(bundle).items()
    )
    return {
        "name": card.name,
        "version": card.version,
        "licence": card.license,
        "backbone": card.provenance.backbone,
        "prefix tokens": card.provenance.prefix_tokens or "-",
        "training data": card.provenance.training_data,
        **({"revision": revision} if (revision := card.provenance.revision) else {}),
        **{name: f"sha256 {digest}" for name, digest in card.provenance.files.items()},
        "trained head": _describe_head(trained),
        "open head": f"{_describe_head(opened)}{encoder}",
        "photos": card.input.describe(),
        "background": "-" if about is None else f"{about.images:,} photos of {about.dataset}",
        "precisions": ", ".join(bundle.precisions()),
        "default precision": ", ".join(defaults),
    }


def _find_defaults(bundle: Bundle) -> dict[str, str]:
    devices: tuple[Device, ...] = get_args(Device)
    return {device: bundle.default_precision(device) for device in devices}


def _describe_head(head: TrainedHead | OpenHead | None) -> str:
    if head is None:
        return "-"
    return f"{head.kind}, {head.activation}, {_describe_least(head.threshold)}"


def _describe_least(threshold: float) -> str:
    return f"threshold {threshold:.3g} unless a label has its own"


def _describe_scores(calibration: HeadCalibration | None) -> str:
    if calibration is None:
        return "as the checkpoint gives them, not calibrated"
    before, after = calibration.error_before, calibration.error_after
    photos = f"{calibration.images} photos of {calibration.dataset}"
    return f"calibrated on {photos}: error {after:.3f}, {before:.3f} before"


def _show_labels(labels: Sequence[Label], measured: Container[str]) -> None:
    counts = Counter(label.category for label in labels if label.category is not None)
    if counts:
        show_pairs({name: f"{count:,} labels" for name, count in counts.items()})
    shares = ("threshold", "precision", "recall", "positives")
    purposes = [word for word in get_args(Purpose) if word in measured]
    others = (f"for {word}" for word in purposes)
    table = Table("label", *["category"] * bool(counts), *shares, *others)
    for label in labels[:_MAX_ROWS]:
        category = [Text(escape(label.category or "-"))] * bool(counts)
        points = [label.by_purpose.get(word) for word in purposes]
        values = [label.threshold, label.precision, label.recall]
        values += [point.threshold if point else None for point in points]
        texts = ["-" if value is None else f"{value:.3f}" for value in values]
        if "precise" in measured and points[-1] is None and (label.positives or 0) >= MIN_POSITIVES:
            texts[-1] = "not reached"
        positives = "-" if label.positives is None else str(label.positives)
        table.add_row(Text(escape(label.name)), *category, *texts[:3], positives, *texts[3:])
    Console().print(table)
    if len(labels) > _MAX_ROWS:
        Console().print(Text(f"{len(labels) - _MAX_ROWS:,} more labels: --json has all", "dim"))
