"""A checkpoint to export: network, configuration, label names, hash."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from export import ExportError
from export.sources.tags import TAG_FILES, read_lines, read_share, read_tag_file
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.clip import read_clip
from models.checkpoints.description import NO_HINTS, Hints
from models.checkpoints.hub import fetch
from models.config import PrefixTokens
from models.network import Network
from models.text import TextEncoder
from models.towers import TowerNetwork
from service.bundle.card import InputContract, Label
from service.fields import LabelText

logger = logging.getLogger(__name__)
_label_name = TypeAdapter[str](LabelText)


@dataclass(frozen=True, eq=False)
class Source:
    """A network to export."""

    network: Network | TowerNetwork  # in eval mode
    labels: tuple[Label, ...]  # N, in the order of the logits; none for an open head
    sha256: str  # of the checkpoint file
    training_data: str  # as the checkpoint names it, else `unknown`
    text: TextEncoder | None = None  # of a model with both towers

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels."""
        return tuple(label.name for label in self.labels)

    @property
    def is_open(self) -> bool:
        """Whether the head is for open labels and has no trained ones."""
        return self.network.config.num_classes is None

    @property
    def prefix_tokens(self) -> PrefixTokens | None:
        """Whether the head sees the backbone's class and register tokens; None if it has none."""
        network = self.network
        return network.config.prefix_tokens if network.backbone.prefix_tokens else None

    @property
    def contract(self) -> InputContract:
        """How the service prepares photos for this network."""
        return InputContract.model_validate(self.network.config.input.model_dump())


def read_source(
    path: Path,
    hints: Hints = NO_HINTS,
    label_names: Path | None = None,
    label_thresholds: Path | None = None,
    category_threshold: Sequence[str] = (),
) -> Source:
    """Reads a checkpoint; a file of label names overrides the checkpoint's own.

    The thresholds of a file are the first to count, then those of categories, `NAME=P`, then the
    tag file's. Raises ExportError for missing or invalid label names and thresholds.
    """
    towers = read_clip(path, hints)
    if towers is not None:
        if (label_names or label_thresholds) is not None or category_threshold:
            raise ExportError(
                "--label-names, --label-thresholds and --category-threshold do not fit a model for "
                "open labels"
            )
        tower, text = towers
        return Source(tower, (), text.sha256, "unknown", text)
    checkpoint = read_checkpoint(path, hints)
    network = checkpoint.take_network()
    labels: tuple[Label, ...] = ()
    if (count := network.config.num_classes) is not None:
        origin, labels = _find_labels(path, checkpoint.label_names, label_names)
        if len(labels) != count:
            raise ExportError(f"{origin}: {len(labels)} label names for {count} logits")
        _check_names(tuple(label.name for label in labels), origin)
    elif label_names is not None:
        raise ExportError("--label-names does not fit a head for open labels")
    labels = _set_thresholds(labels, label_thresholds, category_threshold)
    training_data = checkpoint.notes.get("training_data", "unknown")
    return Source(network, labels, checkpoint.sha256, training_data)


def _find_labels(
    path: Path, stored: tuple[str, ...] | None, given: Path | None
) -> tuple[str, tuple[Label, ...]]:
    """Returns the file that names the labels, and these; `stored` are the checkpoint's names."""
    if given is not None:
        return given.name, read_tag_file(given, given)
    for name in TAG_FILES if stored is None else TAG_FILES[:1]:
        file = fetch(path, name)
        if file is None:
            continue
        labels = read_tag_file(file, path)
        if stored not in (None, tuple(label.name for label in labels)):
            raise ExportError(
                f"{path.name} and {name} have other labels: give the right ones by --label-names"
            )
        logger.info("the labels are those of %s", name)
        return name, labels
    if stored is None:
        raise ExportError(f"{path.name} names no labels: give --label-names")
    return path.name, tuple(Label.model_construct(name=name) for name in stored)


def _check_names(names: tuple[str, ...], origin: str) -> None:
    twice = next((label for label, repeats in Counter(names).items() if repeats > 1), None)
    if twice is not None:
        lines = [str(i) for i, label in enumerate(names, start=1) if label == twice]
        raise ExportError(
            f"{origin}: label names {' and '.join(lines[:2])} are both {twice!r:.80}: rename one"
        )
    for label in names:
        try:  # checked, but not normalised: labelled photos use it as it is
            _label_name.validate_python(label)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise ExportError(f"{origin}: label name {label!r:.80}: {reason}") from error


def _set_thresholds(
    labels: Sequence[Label], path: Path | None, by_category: Sequence[str]
) -> tuple[Label, ...]:
    """Reads a number a line for the first labels, and `NAME=P` for those of a category."""
    lines = [] if path is None else read_lines(path)
    if len(lines) > len(labels):
        raise ExportError(f"{len(lines)} label thresholds for {len(labels)} labels")
    known = dict.fromkeys(label.category for label in labels if label.category is not None)
    shares = dict[str | None, float]()
    for text in by_category:
        category, _, number = text.rpartition("=")
        shares[category] = read_share(number, f"--category-threshold {text}: NAME=P")
        if category not in known:
            shown = ", ".join(known) or "unknown"
            raise ExportError(
                f"--category-threshold {text}: the categories of the labels are {shown}"
            )
    thresholds = [shares.get(label.category, label.threshold) for label in labels]
    for row, line in enumerate(lines):
        thresholds[row] = read_share(line, f"label threshold {row + 1}")
    return tuple(
        label.model_copy(update={"threshold": threshold})
        for label, threshold in zip(labels, thresholds, strict=True)
    )
