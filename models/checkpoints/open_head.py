"""Checkpoint files of open heads: a head alone, bound to the encoder whose tokens it reads."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from models.checkpoints.description import CheckpointError
from models.checkpoints.files import read_file, write_file
from models.checkpoints.layouts.state import build_filled
from models.config import ZeroShotMLDecoderConfig
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import TextEncoder

_CONFIG_KEY, _ORIGIN_KEY = "open_head", "origin"


class Origin(BaseModel):
    """How an open head was trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder_fingerprint: str  # of the backbone whose tokens it was trained on
    text_encoder_sha256: str  # of the weights of the encoder that embedded its labels
    label_names: tuple[str, ...]  # known to be present or absent in every training photo
    concept_names: tuple[str, ...]  # known only where present
    notes: dict[str, str]  # free text by key


@dataclass(frozen=True, eq=False)
class OpenHeadCheckpoint:
    """An open head in eval mode."""

    head: ZeroShotMLDecoder
    origin: Origin

    def check_encoder(self, backbone: nn.Module) -> None:
        """Raises CheckpointError if the head was trained on another backbone's tokens."""
        if fingerprint_encoder(backbone) != self.origin.encoder_fingerprint:
            raise CheckpointError("the open head was trained on the tokens of another encoder")

    def check_text_encoder(self, text: TextEncoder) -> None:
        """Raises CheckpointError if another text encoder made the head's embeddings."""
        if text.sha256 != self.origin.text_encoder_sha256:
            raise CheckpointError("the open head was trained with another text encoder")


def fingerprint_encoder(backbone: nn.Module) -> str:
    """Returns the sha256 of a backbone's weights, in hex."""
    digest = hashlib.sha256()
    for key, tensor in sorted(backbone.state_dict().items()):
        digest.update(f"{key}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()


def write_open_head(path: Path, head: ZeroShotMLDecoder, origin: Origin) -> None:
    """Writes an open head as safetensors with its origin inside."""
    origin_json, config_json = json.dumps(origin.model_dump()), head.config.model_dump_json()
    write_file(path, head, {_CONFIG_KEY: config_json, _ORIGIN_KEY: origin_json})


def read_open_head(path: Path) -> OpenHeadCheckpoint:
    """Reads an open head; raises CheckpointError if the file has none of ours."""
    file = read_file(path)
    try:
        config = ZeroShotMLDecoderConfig.model_validate_json(file.metadata[_CONFIG_KEY])
        origin = Origin.model_validate_json(file.metadata[_ORIGIN_KEY])
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"{path.name} has no open head of ours") from error
    head = build_filled(lambda: ZeroShotMLDecoder(config), file.content)
    return OpenHeadCheckpoint(head.eval(), origin)
