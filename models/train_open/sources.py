"""What an open head is made from: a frozen encoder, its untouched twin and a text encoder.

In: a checkpoint file and a text encoder. Out: `Sources`. Used by training and evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.layouts import CheckpointError
from models.config import InputConfig
from models.network import Network
from models.text import TextEncoder
from models.train_open.teacher import Teacher, load_teacher


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """The head that was trained together with the encoder: it knows some labels well.

    Attributes:
        head: tokens float [B, S, C] -> logits [B, N], in eval mode.
        label_names: N names.
    """

    head: nn.Module
    label_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Sources:
    """What an open head is made from.

    Attributes:
        encoder: gives the tokens and stays as it is.
        prepared: how photos are prepared for it.
        teacher: classifier of the untouched backbone.
        text: embeds the names.
        trained: the encoder's own head; None where its labels have no names.
    """

    encoder: Backbone
    prepared: InputConfig
    teacher: Teacher
    text: TextEncoder
    trained: TrainedHead | None = None


def read_sources(checkpoint: Path, text: TextEncoder) -> Sources:
    """Reads the encoder of a checkpoint and builds the teacher of the same architecture.

    Raises:
        CheckpointError: the file cannot be read, or holds no encoder.
        PretrainedError: there are no pretrained weights of its backbone.
    """
    found = read_checkpoint(checkpoint)
    if found.config is None or not isinstance(found.network, Network):
        raise CheckpointError(f"{checkpoint.name} holds a head without an encoder")
    prepared = found.config.input
    teacher = load_teacher(found.config.backbone, (prepared.height, prepared.width))
    names = found.label_names
    trained = None if names is None else TrainedHead(found.network.head, names)
    return Sources(found.network.backbone, prepared, teacher, text, trained)
