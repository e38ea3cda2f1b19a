"""Checkpoint files: ours (safetensors) written and read, other projects' read.

In: a file. Out: a `Checkpoint`: the network in eval mode and what the file says of it.
`layouts/` translates foreign key names. Next: `export`.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import scalar as np_scalar
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from models.checkpoints.hub import locate, read_description
from models.checkpoints.layouts import (
    CheckpointError,
    Content,
    ForeignState,
    Hints,
    read_bare_backbone,
    read_foreign,
)
from models.checkpoints.layouts.backbones import complete
from models.config import NetworkConfig
from models.network import Network, build_head

_CONFIG_KEY = "config"
_LABELS_KEY = "label_names"
_NOTES_KEY = "notes"

# Plain data that other projects store beside their tensors: the best mAP as a numpy number
# (Query2Label), the command line's arguments (timm). Building these runs no code of the file.
_PLAIN_DATA: list[Any] = [
    argparse.Namespace,
    np.dtype,
    np.dtypes.Float32DType,
    np.dtypes.Float64DType,
    *((np_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds.

    Attributes:
        network: a `Network`, or a head alone where the file has no backbone; eval mode.
        config: the whole network's configuration; None for a head alone.
        label_names: N names, or None where the file does not tell.
        notes: how it was trained, free text by key.
    """

    network: nn.Module
    config: NetworkConfig | None
    label_names: tuple[str, ...] | None
    notes: Mapping[str, str]


def load_checkpoint(
    path: Path | str,
    *,
    backbone: str | None = None,
    image_size: int | None = None,
    num_heads: int | None = None,
    pre_norm: bool | None = None,
) -> nn.Module:
    """Reads the network of a checkpoint file; the public entry.

    Args:
        path: the file: ours (safetensors), or one of the layouts that `layouts/` reads; or
            `hf-hub:owner/name`.
        backbone: timm name, where the file holds a backbone but not its name.
        image_size: pixels, where the file does not tell.
        num_heads: attention heads, where they are not the authors' number: 8 in ML-Decoder,
            4 in Query2Label.
        pre_norm: Query2Label's norms stand before the attention, where the file does not tell.

    Returns:
        A module in eval mode from float images [B, 3, H, W], as the network takes them, to
        logits [B, N]; for a file with a head alone, from features [B, C, H, W] or
        [B, S, C] to logits. One for open labels takes their embeddings, float [L, E], as
        second argument and gives [B, L].

    Raises:
        CheckpointError: with a one-line reason.
    """
    return read_checkpoint(path, Hints(backbone, image_size, num_heads, pre_norm)).network


def read_checkpoint(path: Path | str, hints: Hints = Hints()) -> Checkpoint:  # noqa: B008 - frozen
    """Reads a checkpoint file with all that it says, as `load_checkpoint` does.

    Raises:
        CheckpointError: with a one-line reason.
    """
    beside = read_description(path)
    path = locate(path)
    metadata, content = _read_file(path)
    if _CONFIG_KEY in metadata:
        return _read_own(path.name, metadata, content)
    return _build_foreign(read_foreign(content, hints, beside))


def read_backbone(path: Path | str) -> Content | None:
    """Reads a file that holds a backbone, perhaps with its own classifier, and no head of ours.

    Returns:
        Its tensors under timm's names and what is said of them; None where there is a head, see
        `read_checkpoint`.

    Raises:
        CheckpointError: with a one-line reason.
    """
    beside = read_description(path)
    metadata, content = _read_file(locate(path))
    return None if _CONFIG_KEY in metadata else read_bare_backbone(content, beside)


def write_checkpoint(
    path: Path, network: Network, label_names: tuple[str, ...], notes: Mapping[str, str]
) -> None:
    """Writes a network as safetensors, with its configuration inside, atomically.

    Args:
        path: the file, ending in `.safetensors`.
        network: what to store.
        label_names: N names in the order of the logits.
        notes: how it was trained, free text by key.
    """
    metadata = {
        _CONFIG_KEY: network.config.model_dump_json(),
        _LABELS_KEY: json.dumps(label_names),
        _NOTES_KEY: json.dumps(dict(notes)),
    }
    state = {key: tensor.contiguous() for key, tensor in network.state_dict().items()}
    staging = path.with_suffix(".tmp")
    staging.write_bytes(save(state, metadata))
    staging.replace(path)


def _read_file(path: Path) -> tuple[Mapping[str, str], Any]:
    """Returns (what a safetensors file says of itself, the file's content)."""
    if not path.is_file():
        raise CheckpointError(f"no checkpoint file at {path}")
    return _read_safetensors(path) if path.suffix == ".safetensors" else ({}, _unpickle(path))


def _read_safetensors(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
            return file.metadata() or {}, state
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name} is damaged or not a safetensors file") from error


def _read_own(name: str, metadata: Mapping[str, str], state: Mapping[str, Tensor]) -> Checkpoint:
    try:
        config = NetworkConfig.model_validate_json(metadata[_CONFIG_KEY])
        labels = tuple(json.loads(metadata[_LABELS_KEY]))
        notes = json.loads(metadata.get(_NOTES_KEY, "{}"))
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{name} holds a network configuration that is damaged") from error
    try:
        network = Network(config)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from error
    fill(network, state)
    return Checkpoint(network.eval(), config, labels, notes)


def _build_foreign(foreign: ForeignState) -> Checkpoint:
    if foreign.config is None:
        head = build_head(foreign.head)
        fill(head, foreign.state)
        return Checkpoint(head.eval(), None, foreign.label_names, {})
    network = Network(foreign.config)
    fill(network, complete(foreign.state, network.state_dict()))
    return Checkpoint(network.eval(), foreign.config, foreign.label_names, {})


def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fills a module with tensors of exactly its keys and shapes.

    Raises:
        CheckpointError: one is absent, too many, or of another shape.
    """
    own = module.state_dict()
    for key, tensor in own.items():
        if key not in state:
            raise CheckpointError(f"the checkpoint lacks {key}")
        if state[key].shape != tensor.shape:
            found, wanted = tuple(state[key].shape), tuple(tensor.shape)
            raise CheckpointError(f"{key} has shape {found}, the network wants {wanted}")
    extra = sorted(set(state) - set(own))
    if extra:
        raise CheckpointError(f"the checkpoint has {extra[0]}, which the network does not have")
    module.load_state_dict(dict(state))


def _unpickle(path: Path) -> object:
    try:
        with torch.serialization.safe_globals(_PLAIN_DATA):
            content: object = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path.name} is not a file of plain tensors (code in a pickle is refused): store "
            "them alone, with torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # torch's reader fails in as many ways as bytes can be wrong
        raise CheckpointError(f"{path.name} is damaged or not a torch checkpoint") from error
    return content
