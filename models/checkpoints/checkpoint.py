"""Networks from checkpoints: ours (safetensors with the configuration inside) and foreign ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.checkpoints.description import (
    NO_HINTS,
    CheckpointError,
    Description,
    Hints,
    State,
    Weights,
)
from models.checkpoints.files import CheckpointFile, read_file, write_file
from models.checkpoints.layouts.backbones import add_counters
from models.checkpoints.layouts.translate import read_bare_backbone, read_foreign
from models.checkpoints.preparation import PREPROCESS, TAGS, take_rgb
from models.config import NetworkConfig
from models.network import Network, build_head
from models.timm_model import BackboneError

_EXAMPLE_TOLERANCE = 1e-3  # of the largest logit
_CONFIG_KEY, _LABELS_KEY, _NOTES_KEY = "config", "label_names", "notes"


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

    `path` is a file, ours or of a layout that `layouts/` reads, the folder of a timm repository, or
    `hf-hub:owner/name`. `hints` are fields of `Hints`, such as `backbone="resnet50"`; give only
    facts that the file lacks.

    Returns a module in eval mode from prepared images [B, 3, H, W], or for a head alone from
    features [B, C, H, W] or [B, S, C], to logits [B, N]. A head for open labels takes embeddings,
    float [L, E], as second argument and returns [B, L]. RAM's takes them if given, RAM++'s as [L,
    descriptions, E].

    Raises CheckpointError if the file is of no known layout, or lacks a fact; one line names it.
    """
    return read_checkpoint(path, Hints(**hints)).network


def read_checkpoint(path: Path | str | CheckpointFile, hints: Hints = NO_HINTS) -> Checkpoint:
    """Reads a checkpoint file, as `load_checkpoint` does, with its labels and notes."""
    file = path if isinstance(path, CheckpointFile) else read_file(path)
    is_ours = _CONFIG_KEY in file.metadata
    if is_ours and hints.channels == "bgr":
        raise CheckpointError(f"{file.name} was made for RGB: leave out --channels")
    try:
        weights = _read_own(file) if is_ours else _read_foreign(file, hints)
        network = _build(file.name, weights, hints)
        if hints.channels == "bgr" and isinstance(network, Network):
            take_rgb(network.backbone, network.config.input)
    except CheckpointError:
        raise
    except Exception as error:  # of torch and timm, for odd shapes, types and widths
        raise CheckpointError(f"{file.name} has no network that can be built: {error}") from error
    return Checkpoint(network, weights.label_names, weights.notes, file.sha256)


def _read_foreign(file: CheckpointFile, hints: Hints) -> Weights:
    described = file.description
    if described.is_tagger and not described.photos and None in (hints.channels, hints.pad):
        raise CheckpointError(
            f"{file.name} is in a folder with {TAGS}, and no {PREPROCESS} shows how photos were "
            "prepared: give --channels rgb or bgr, and --pad COLOUR or none (WD taggers v3: "
            "--channels bgr --pad white)"
        )
    try:
        weights = read_foreign(file.content, hints, described)
    except BackboneError as error:
        raise CheckpointError(str(error)) from error
    photos = described.photos
    if photos is None or not isinstance(weights.config, NetworkConfig):
        return weights
    height, width = weights.config.input.height, weights.config.input.width
    if hints.image_size is None and (photos.height, photos.width) != (height, width):
        raise CheckpointError(
            f"{PREPROCESS} has photos of {photos.height} x {photos.width} pixels, {file.name} "
            f"takes {height} x {width}: give --image-size"
        )
    photos = photos.model_copy(update={"height": height, "width": width})
    return replace(weights, config=weights.config.model_copy(update={"input": photos}))


def _build(name: str, weights: Weights, hints: Hints) -> nn.Module:
    if not isinstance(weights.config, NetworkConfig):
        head = build_head(weights.config)
        fill(head, weights.state)
        return head.eval()
    network = Network(hints.complete(name, weights.config))
    fill(network, add_counters(weights.state, network.state_dict()))
    network.eval()
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


def read_backbone(file: CheckpointFile) -> tuple[State, Description] | None:
    """Reads a backbone, perhaps with a classifier, under timm's names; None if there is a head."""
    is_ours = _CONFIG_KEY in file.metadata
    return None if is_ours else read_bare_backbone(file.content, file.description)


def write_checkpoint(
    path: Path, network: Network, label_names: tuple[str, ...], notes: Mapping[str, str]
) -> None:
    """Writes `.safetensors`; `label_names` are in the order of the logits, or empty."""
    metadata = {_CONFIG_KEY: network.config.model_dump_json(), _NOTES_KEY: json.dumps(dict(notes))}
    if label_names:
        metadata[_LABELS_KEY] = json.dumps(label_names)
    write_file(path, network, metadata)


def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fills a module; raises CheckpointError unless keys and shapes are exactly its own."""
    wanted_tensors = module.state_dict()
    for key, tensor in wanted_tensors.items():
        if key not in state:
            raise CheckpointError(f"the checkpoint lacks {key}")
        if state[key].shape != tensor.shape:
            stored, shape = tuple(state[key].shape), tuple(tensor.shape)
            raise CheckpointError(f"{key} has shape {stored}, the network wants {shape}")
        if tensor.is_floating_point() and not state[key].is_floating_point():
            kind = str(state[key].dtype).removeprefix("torch.")
            raise CheckpointError(f"{key} has numbers of type {kind}: store float32")
    extra = sorted(set(state) - set(wanted_tensors))
    if extra:
        raise CheckpointError(f"the checkpoint has {extra[0]}, which the network does not have")
    module.load_state_dict(dict(state))


def _read_own(file: CheckpointFile) -> Weights:
    try:
        config = NetworkConfig.model_validate_json(file.metadata[_CONFIG_KEY])
        label_names = tuple(json.loads(file.metadata.get(_LABELS_KEY, "[]"))) or None
        notes = json.loads(file.metadata.get(_NOTES_KEY, "{}"))
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file.name} has a damaged network configuration") from error
    return Weights(file.content, config, label_names, notes)
