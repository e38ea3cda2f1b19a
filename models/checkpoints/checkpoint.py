"""Networks from checkpoints: ours (safetensors with the configuration inside) and foreign ones."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import nn

from models.checkpoints.description import (
    NO_HINTS,
    CheckpointError,
    Hints,
    Weights,
    first_reason,
)
from models.checkpoints.files import NETWORK, CheckpointFile, read_file, write_file
from models.checkpoints.layouts.state import build_filled
from models.checkpoints.layouts.translate import read_foreign
from models.checkpoints.preparation import take_rgb
from models.commands import RequestError
from models.config import NetworkConfig
from models.network import Network, build_head

_EXAMPLE_TOLERANCE = 1e-3  # of the largest logit
_LABELS_KEY, _NOTES_KEY = "label_names", "notes"
logger = logging.getLogger(__name__)
_names, _notes = TypeAdapter(tuple[str, ...]), TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's network, in eval mode."""

    network: nn.Module  # a `Network`, or a head alone if the file has no backbone
    label_names: tuple[str, ...] | None  # N names, or None if the file has none
    notes: Mapping[str, str]  # on the training, free text by key
    sha256: str  # of the file

    def take_network(self) -> Network:
        """Returns the network; raises CheckpointError for a head alone."""
        if not isinstance(self.network, Network):
            raise CheckpointError("the checkpoint has a head without a backbone")
        return self.network


def load_checkpoint(path: Path | str, **hints: Any) -> nn.Module:  # noqa: ANN401
    """Reads the network of a checkpoint; public as `models.load_checkpoint`.

    `path` is a file, the folder of a timm repository, or `hf-hub:owner/name`; `hints` are fields
    of `Hints` that the file lacks. Returns a module in eval mode from prepared images [B, 3, H, W],
    or for a head alone from features [B, C, H, W] or [B, S, C], to logits [B, N]. A head for open
    labels takes embeddings, float [L, E], as second argument and returns [B, L]; RAM's takes them
    if given, RAM++'s as [L, descriptions, E].

    Raises CheckpointError if the file is of no known layout, or lacks a fact; one line names it.
    """
    return read_checkpoint(path, Hints(**hints)).network


def read_checkpoint(path: Path | str | CheckpointFile, hints: Hints = NO_HINTS) -> Checkpoint:
    """Reads a checkpoint file, as `load_checkpoint` does, with its labels and notes."""
    file = path if isinstance(path, CheckpointFile) else read_file(path)
    is_ours = NETWORK in file.metadata
    if is_ours and hints.channels == "bgr":
        raise CheckpointError(f"{file.name} was made for RGB: leave out --channels")
    try:
        if is_ours:
            weights = _read_own(file)
        else:
            weights = read_foreign(file.content, hints, file.description)
        network = _build(file.name, weights, hints)
        if hints.channels == "bgr" and isinstance(network, Network):
            take_rgb(network.backbone, network.config.input)
    except RequestError as error:  # of checkpoints and of backbones
        raise CheckpointError(str(error)) from error
    except KeyError as error:  # layouts look their tensors up
        raise CheckpointError(f"{file.name} lacks {error.args[0]}") from error
    except Exception as error:  # of torch and timm, for odd shapes, types and widths
        reason = " ".join(first_reason(error).split())
        raise CheckpointError(
            f"{file.name} has no network that can be built: {reason:.500}"
        ) from error
    return Checkpoint(network, weights.label_names, weights.notes, file.sha256)


def _build(name: str, weights: Weights, hints: Hints) -> nn.Module:
    if not isinstance(weights.config, NetworkConfig):
        head = weights.config
        return build_filled(lambda: build_head(head), weights.state).eval()
    config = hints.complete(name, weights.config)
    made, wanted = (f"{c.input.height} x {c.input.width}" for c in (weights.config, config))
    try:
        network = build_filled(lambda: Network(config), weights.state).eval()
    except CheckpointError as error:
        if made == wanted or "size mismatch" not in str(error):
            raise
        raise CheckpointError(
            f"{name} was made for {made} pixels, and cannot take {wanted}: {error}"
        ) from error
    if made != wanted:
        before, spec = weights.config.input, config.input
        share = spec.height * spec.width / (before.height * before.width)
        tokens = network.backbone.count_tokens((spec.height, spec.width))
        logger.info(
            "photos of %s pixels, not %s: %.2f times as many pixels, %d tokens for the head",
            *(wanted, made, share, tokens),
        )
    if weights.example is not None:
        images, expected = weights.example
        with torch.inference_mode():
            deviation = (network(images) - expected).abs().max()
        if not deviation <= _EXAMPLE_TOLERANCE * expected.abs().max():
            raise CheckpointError(
                f"the model of {name} is more than timm's forward_features and forward_head, and "
                "cannot be served"
            )
    return network


def write_checkpoint(
    path: Path, network: Network, label_names: tuple[str, ...], notes: Mapping[str, str]
) -> None:
    """Writes `.safetensors`; `label_names` are in the order of the logits, or empty."""
    metadata = {NETWORK: network.config.model_dump_json(), _NOTES_KEY: json.dumps(dict(notes))}
    if label_names:
        metadata[_LABELS_KEY] = json.dumps(label_names)
    write_file(path, network, metadata)


def _read_own(file: CheckpointFile) -> Weights:
    try:
        config = NetworkConfig.model_validate_json(file.metadata[NETWORK])
        label_names = _names.validate_json(file.metadata.get(_LABELS_KEY, "[]")) or None
        notes = _notes.validate_json(file.metadata.get(_NOTES_KEY, "{}"))
    except ValueError as error:
        raise CheckpointError(
            f"{file.name} has a damaged network configuration, or one that is not supported: "
            f"{first_reason(error)}"
        ) from error
    return Weights(file.content, config, label_names, notes)
