"""What is exported: a checkpoint, completed by what its file does not tell.

In: a checkpoint file and hints. Out: a `Source`: network, configuration, label names and
where they came from. Next: `trace.py`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from export.errors import UnusableCheckpointError
from models.checkpoints import Checkpoint, read_checkpoint
from models.config import NetworkConfig
from models.network import Network
from service.card import InputContract


@dataclass(frozen=True)
class SourceHints:
    """A checkpoint file and what it may not tell; None leaves a matter to the file.

    Attributes:
        checkpoint: the file.
        backbone: timm name.
        image_size: height and width in pixels.
        num_heads: attention heads of the decoder.
        label_names: text file with one label a line, in the order of the logits.
    """

    checkpoint: Path
    backbone: str | None = None
    image_size: int | None = None
    num_heads: int | None = None
    label_names: Path | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """All that the export needs of a checkpoint.

    Attributes:
        network: in eval mode.
        config: what was built.
        label_names: N names, in the order of the logits.
        sha256: hash of the checkpoint file.
        training_data: what the checkpoint says of it, else `unknown`.
    """

    network: Network
    config: NetworkConfig
    label_names: tuple[str, ...]
    sha256: str
    training_data: str

    @property
    def contract(self) -> InputContract:
        """How the service has to prepare photos for this network."""
        spec = self.config.input
        return InputContract(
            height=spec.height,
            width=spec.width,
            resize_mode=spec.resize_mode,
            crop_pct=spec.crop_pct,
            interpolation=spec.interpolation,
        )


def read_source(hints: SourceHints) -> Source:
    """Reads a checkpoint.

    Raises:
        UnusableCheckpointError: it holds a head alone, or the label names are missing or too
            many or too few.
        models.layouts.CheckpointError: the file cannot be read.
    """
    checkpoint = _read_checkpoint(hints)
    config = checkpoint.config
    if config is None:
        raise UnusableCheckpointError(f"{hints.checkpoint.name} holds a head without a backbone")
    if hints.backbone not in (None, config.backbone):
        raise UnusableCheckpointError(
            f"{hints.checkpoint.name} was made with {config.backbone}, not {hints.backbone}"
        )
    return Source(
        network=cast("Network", checkpoint.network.eval()),
        config=config,
        label_names=_label_names(hints, checkpoint, config.head.num_classes),
        sha256=hashlib.sha256(hints.checkpoint.read_bytes()).hexdigest(),
        training_data=checkpoint.notes.get("training_data", "unknown"),
    )


def _read_checkpoint(hints: SourceHints) -> Checkpoint:
    try:
        return read_checkpoint(
            hints.checkpoint,
            backbone=hints.backbone,
            image_size=hints.image_size,
            num_heads=hints.num_heads,
        )
    except ValueError as error:  # an impossible network: unknown backbone, odd widths
        raise UnusableCheckpointError(f"{hints.checkpoint.name}: {error}") from error


def _label_names(hints: SourceHints, checkpoint: Checkpoint, count: int) -> tuple[str, ...]:
    names = checkpoint.label_names
    if hints.label_names is not None:
        names = _read_lines(hints.label_names)
    if names is None:
        raise UnusableCheckpointError(
            f"{hints.checkpoint.name} names no labels: give --label-names"
        )
    if len(names) != count:
        raise UnusableCheckpointError(f"{len(names)} label names for {count} logits")
    if len(set(names)) != len(names):
        raise UnusableCheckpointError("a label name is there twice")
    return names


def _read_lines(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableCheckpointError(f"label names {path} cannot be read") from error
    return tuple(line.strip() for line in lines if line.strip())
