"""Checkpoint files of open heads: a head alone, bound to the encoder whose tokens it reads.

In: a `ZeroShotMLDecoder` and where it comes from. Out: a safetensors file, read back as an
`OpenHeadCheckpoint`. `train_open` writes it; `evaluate_open` and the export read it beside the
encoder's own checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from models.checkpoints.layouts import CheckpointError
from models.config import ZeroShotMLDecoderConfig
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import TextEncoder

_CONFIG_KEY, _ORIGIN_KEY = "open_head", "origin"


class Origin(BaseModel):
    """Where an open head comes from.

    Attributes:
        encoder_fingerprint: of the backbone whose tokens it was trained on.
        text_encoder_sha256: hash of the weights of the encoder that embedded its labels.
        label_names: labels that it was trained on with every photo's truth.
        concept_names: labels that it was trained on with positives only.
        notes: how it was trained, free text by key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder_fingerprint: str
    text_encoder_sha256: str
    label_names: tuple[str, ...]
    concept_names: tuple[str, ...]
    notes: dict[str, str]


@dataclass(frozen=True, eq=False)
class OpenHeadCheckpoint:
    """What such a file holds.

    Attributes:
        head: in eval mode.
        origin: where it comes from.
    """

    head: ZeroShotMLDecoder
    origin: Origin

    def check_encoder(self, backbone: nn.Module) -> None:
        """Makes sure that the head was trained on the tokens of this backbone.

        Raises:
            CheckpointError: it was not.
        """
        if fingerprint_encoder(backbone) != self.origin.encoder_fingerprint:
            raise CheckpointError("the open head was trained on the tokens of another encoder")

    def check_text_encoder(self, text: TextEncoder) -> None:
        """Makes sure that the head was trained with the embeddings of this text encoder.

        Raises:
            CheckpointError: it was not.
        """
        if text.sha256 != self.origin.text_encoder_sha256:
            raise CheckpointError("the open head was trained with another text encoder")


def fingerprint_encoder(backbone: nn.Module) -> str:
    """Returns a hash of a backbone's weights, sha256 in hex."""
    digest = hashlib.sha256()
    for key, tensor in sorted(backbone.state_dict().items()):
        digest.update(f"{key}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()


def write_open_head(path: Path, head: ZeroShotMLDecoder, origin: Origin) -> None:
    """Writes an open head as safetensors, with all that is known of it inside, atomically."""
    metadata = {
        _CONFIG_KEY: head.config.model_dump_json(),
        _ORIGIN_KEY: json.dumps(origin.model_dump()),
    }
    state = {key: tensor.contiguous() for key, tensor in head.state_dict().items()}
    staging = path.with_suffix(".tmp")
    staging.write_bytes(save(state, metadata))
    staging.replace(path)


def read_open_head(path: Path) -> OpenHeadCheckpoint:
    """Reads an open head.

    Raises:
        CheckpointError: with a one-line reason.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
        config = ZeroShotMLDecoderConfig.model_validate_json(metadata[_CONFIG_KEY])
        origin = Origin.model_validate_json(metadata[_ORIGIN_KEY])
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name} is absent, damaged or no safetensors file") from error
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"{path.name} holds no open head of ours") from error
    head = ZeroShotMLDecoder(config)
    try:
        head.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{path.name} lacks weights of its open head") from error
    return OpenHeadCheckpoint(head.eval(), origin)
