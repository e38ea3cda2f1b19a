"""What is exported: a checkpoint, completed by what its file does not tell.

In: a checkpoint file and hints. Out: a `Source`: network, configuration, label names and
where they came from. Next: `trace.py`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from pydantic import AfterValidator, StringConstraints, TypeAdapter, ValidationError

from export.errors import UnusableCheckpointError
from models.checkpoints.checkpoint import Checkpoint, read_checkpoint
from models.checkpoints.contradictions import check_hints
from models.checkpoints.hub import locate
from models.checkpoints.layouts import Hints
from models.config import NetworkConfig, ZeroShotMLDecoderConfig
from models.network import Network
from service.bundle.card import InputContract
from service.labels.text import MAX_NAME_CHARACTERS, normalise_text

_label_name = TypeAdapter[str](
    Annotated[
        str, StringConstraints(max_length=MAX_NAME_CHARACTERS), AfterValidator(normalise_text)
    ]
)


@dataclass(frozen=True)
class SourceHints:
    """A checkpoint file and what it may not tell; None leaves a matter to the file.

    Attributes:
        checkpoint: the file, or `hf-hub:owner/name`.
        backbone: timm name.
        image_size: height and width in pixels.
        num_heads: attention heads of the decoder.
        pre_norm: Query2Label with the norms before the attention.
        plain_pixels: trained on pixels in 0..1 without mean and std.
        single_label: a photo has exactly one label, so scores are a softmax.
        label_names: text file with one label a line, in the order of the logits.
        embedding_encoder: name of what makes the embeddings that an open head takes.
        embedding_template: text that it embeds, `{}` for a label's name.
    """

    checkpoint: Path
    backbone: str | None = None
    image_size: int | None = None
    num_heads: int | None = None
    pre_norm: bool | None = None
    plain_pixels: bool = False
    single_label: bool = False
    label_names: Path | None = None
    embedding_encoder: str | None = None
    embedding_template: str | None = None

    @property
    def of_the_file(self) -> Hints:
        """What is said of the file itself."""
        return Hints(self.backbone, self.image_size, self.num_heads, self.pre_norm)


@dataclass(frozen=True, eq=False)
class Source:
    """All that the export needs of a checkpoint.

    Attributes:
        network: in eval mode.
        config: what was built.
        label_names: N names, in the order of the logits; none for an open head.
        sha256: hash of the checkpoint file.
        training_data: what the checkpoint says of it, else `unknown`.
    """

    network: Network
    config: NetworkConfig
    label_names: tuple[str, ...]
    sha256: str
    training_data: str

    @property
    def is_open(self) -> bool:
        """Whether the head takes any labels and so has none of its own."""
        return self.config.num_classes is None

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
        UnusableCheckpointError: it holds a head alone, or the label names are missing, too many
            or too few, or cannot be shown.
        CheckpointError: the file cannot be read, or is not what the hints say of it.
    """
    checkpoint = _read_checkpoint(hints)
    if checkpoint.config is None:
        raise UnusableCheckpointError(f"{hints.checkpoint.name} holds a head without a backbone")
    config = _complete(checkpoint.config, hints)
    check_hints(hints.checkpoint.name, config, hints.of_the_file)
    return Source(
        network=cast("Network", checkpoint.network.eval()),
        config=config,
        label_names=_label_names(hints, checkpoint, config.num_classes),
        sha256=hashlib.sha256(locate(hints.checkpoint).read_bytes()).hexdigest(),
        training_data=checkpoint.notes.get("training_data", "unknown"),
    )


def _read_checkpoint(hints: SourceHints) -> Checkpoint:
    try:
        return read_checkpoint(hints.checkpoint, hints.of_the_file)
    except ValueError as error:  # an impossible network: unknown backbone, odd widths
        raise UnusableCheckpointError(f"{hints.checkpoint.name}: {error}") from error


def _complete(config: NetworkConfig, hints: SourceHints) -> NetworkConfig:
    """Puts into the configuration what the weights do not depend on."""
    config = config.complete(plain_pixels=hints.plain_pixels, single_label=hints.single_label)
    told = {
        "embedding_encoder": hints.embedding_encoder,
        "embedding_template": hints.embedding_template,
    }
    told = {name: value for name, value in told.items() if value is not None}
    if told and not isinstance(config.head, ZeroShotMLDecoderConfig):
        raise UnusableCheckpointError("the head has trained labels, so it takes no embeddings")
    if told:
        config = config.model_copy(update={"head": config.head.model_copy(update=told)})
    try:  # anew, so that it is checked: a head for open labels has no softmax
        return NetworkConfig.model_validate(config.model_dump())
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise UnusableCheckpointError(f"{hints.checkpoint.name}: {reason}") from error


def _label_names(hints: SourceHints, checkpoint: Checkpoint, count: int | None) -> tuple[str, ...]:
    if count is None:
        if hints.label_names is not None:
            raise UnusableCheckpointError("the head is for open labels, it has no names to give")
        return ()
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
    for name in names:
        _check_name(name)
    return names


def _check_name(name: str) -> None:
    # Checked and left as it is: labelled photos name it so.
    try:
        _label_name.validate_python(name)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise UnusableCheckpointError(f"label name {name!r:.80}: {reason}") from error


def _read_lines(path: Path) -> tuple[str, ...]:
    try:
        # At line feeds alone: what else Python takes for the end of a line is a hidden character.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableCheckpointError(f"label names {path} cannot be read") from error
    return tuple(line.strip() for line in lines if line.strip())
