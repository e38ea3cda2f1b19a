"""A checkpoint to export: network, configuration, label names, hash."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError

from export import ExportError
from export.sources.tags import find_tags, read_tag_file
from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.clip import read_clip
from models.checkpoints.description import NO_HINTS, Hints
from models.config import NetworkConfig, PrefixTokens
from models.network import Network
from models.text import TextEncoder
from models.towers import TowerNetwork
from service.bundle.card import InputContract, Label
from service.fields import MAX_NAME_CHARACTERS, normalise_text

logger = logging.getLogger(__name__)
_label_name = TypeAdapter[str](
    Annotated[
        str, StringConstraints(max_length=MAX_NAME_CHARACTERS), AfterValidator(normalise_text)
    ]
)


class UnusableCheckpointError(ExportError):
    """The checkpoint lacks something that a bundle needs."""


@dataclass(frozen=True, eq=False)
class Source:
    """A network to export."""

    network: Network | TowerNetwork  # in eval mode
    config: NetworkConfig
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
        return self.config.num_classes is None

    @property
    def prefix_tokens(self) -> PrefixTokens | None:
        """Whether the head sees the backbone's class and register tokens; None if it has none."""
        return self.config.prefix_tokens if self.network.backbone.prefix_tokens else None

    @property
    def contract(self) -> InputContract:
        """How the service prepares photos for this network."""
        return InputContract.model_validate(self.config.input.model_dump())


def read_source(
    path: Path,
    hints: Hints = NO_HINTS,
    label_names: Path | None = None,
    label_thresholds: Path | None = None,
    category_threshold: Sequence[tuple[str, float]] = (),
) -> Source:
    """Reads a checkpoint; a file of label names overrides the checkpoint's own.

    The thresholds of a file are the first to count, then those of categories, then the tag file's.

    Raises UnusableCheckpointError for a head without a backbone, and for missing or invalid label
    names and thresholds.
    """
    towers = read_clip(path, hints)
    if towers is not None:
        if (label_names or label_thresholds) is not None or category_threshold:
            raise UnusableCheckpointError("--label-names does not fit a model for open labels")
        network, text = towers.network, towers.text
        return Source(network, network.config, (), text.sha256, "unknown", text)
    checkpoint = read_checkpoint(path, hints)
    if checkpoint.config is None or not isinstance(checkpoint.network, Network):
        raise UnusableCheckpointError(f"{path.name} has a head without a backbone")
    labels = _choose_labels(path, checkpoint, label_names)
    thresholds = _read_thresholds(label_thresholds, len(labels))
    return Source(
        network=checkpoint.network,
        config=checkpoint.config,
        labels=_set_thresholds(labels, thresholds, dict(category_threshold)),
        sha256=checkpoint.sha256,
        training_data=checkpoint.notes.get("training_data", "unknown"),
    )


def _choose_labels(path: Path, checkpoint: Checkpoint, given: Path | None) -> tuple[Label, ...]:
    assert checkpoint.config is not None
    count = checkpoint.config.num_classes
    if count is None:
        if given is not None:
            raise UnusableCheckpointError("--label-names does not fit a head for open labels")
        return ()
    origin, labels = _find_labels(path, checkpoint.label_names, given)
    if given is None and origin != path.name:
        logger.info("the labels are those of %s", origin)
    if len(labels) != count:
        raise UnusableCheckpointError(f"{origin}: {len(labels)} label names for {count} logits")
    _check_names(tuple(label.name for label in labels), origin)
    return labels


def _find_labels(
    path: Path, own: tuple[str, ...] | None, given: Path | None
) -> tuple[str, tuple[Label, ...]]:
    """Returns the file that names the labels, and these; `own` are names in the checkpoint."""
    if given is not None:
        labels = read_tag_file(given)
        if labels is None:
            labels = _to_labels(filter(None, _read_lines(given, "names")))
        return given.name, labels
    found = find_tags(path, named=own is not None)
    if found is None and own is None:
        raise UnusableCheckpointError(f"{path.name} names no labels: give --label-names")
    origin, labels = found or (path.name, _to_labels(own or ()))
    if own not in (None, tuple(label.name for label in labels)):
        raise UnusableCheckpointError(
            f"{path.name} and {origin} have other labels: give the right ones by --label-names"
        )
    return origin, labels


def _to_labels(names: Iterable[str]) -> tuple[Label, ...]:
    return tuple(Label.model_construct(name=name) for name in names)  # `_check_names` follows


def _set_thresholds(
    labels: Sequence[Label], given: Sequence[float | None], by_category: Mapping[str, float]
) -> tuple[Label, ...]:
    known = dict.fromkeys(label.category for label in labels if label.category is not None)
    if unknown := [name for name in by_category if name not in known]:
        shown = ", ".join(known) or "unknown"
        raise UnusableCheckpointError(
            f"--category-threshold {unknown[0]}: the categories of the labels are {shown}"
        )
    thresholds = (
        by_category.get(label.category or "", label.threshold) if own is None else own
        for label, own in zip(labels, given, strict=True)
    )
    return tuple(
        label.model_copy(update={"threshold": threshold})
        for label, threshold in zip(labels, thresholds, strict=True)
    )


def _check_names(names: tuple[str, ...], origin: str) -> None:
    twice = next((label for label, repeats in Counter(names).items() if repeats > 1), None)
    if twice is not None:
        places = [str(i) for i, label in enumerate(names, start=1) if label == twice]
        raise UnusableCheckpointError(
            f"{origin}: label names {' and '.join(places[:2])} are both {twice!r:.80}: rename one"
        )
    for label in names:
        try:  # checked, but not normalised: labelled photos use it as it is
            _label_name.validate_python(label)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise UnusableCheckpointError(
                f"{origin}: label name {label!r:.80}: {reason}"
            ) from error


def _read_thresholds(path: Path | None, count: int) -> tuple[float | None, ...]:
    """Reads one number a line, 0 to 1, for the first of `count` labels; None for the others."""
    lines = [] if path is None else _read_lines(path, "thresholds")
    if len(lines) > count:
        raise UnusableCheckpointError(f"{len(lines)} label thresholds for {count} labels")
    found: list[float | None] = [None] * count
    for row, line in enumerate(lines):
        try:
            found[row] = value = float(line)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise UnusableCheckpointError(
                f"label threshold {row + 1} must be a number from 0 to 1; it is {line!r:.80}"
            )
    return tuple(found)


def _read_lines(path: Path, kind: str) -> list[str]:
    try:
        # Split at line feeds only: a name must not contain Python's other line ends.
        lines = path.read_bytes().decode("utf-8-sig").rstrip().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableCheckpointError(f"label {kind} {path} cannot be read") from error
    return [line.strip() for line in lines]
