"""What a run starts from: the weights of another checkpoint, as far as they fit.

In: a network and the file of `--init`. Out: the network with the file's backbone and the pixels
that it was trained on, and with its head where that has the same shape. Next: `loop.py`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import Tensor, nn

from models.backbones.backbone import Backbone, input_config
from models.checkpoints.checkpoint import fill, read_backbone, read_checkpoint
from models.checkpoints.hub import locate
from models.checkpoints.layouts import CheckpointError, Description, Hints
from models.checkpoints.layouts.backbones import complete, take_pooled_norm
from models.config import InputConfig
from models.network import Network

# What timm and TResNet's authors call the pooling and the classifiers behind a backbone.
_CLASSIFIERS = (
    "attn_pool.", "aux_head.", "classifier.", "fc.", "fc_norm.", "head.", "head_dist.",
)  # fmt: skip
# Parts of the preparation that the weights were trained for, whatever size the recipe wants.
_PIXELS = ("mean", "std", "interpolation")


def fingerprint(init: Path | None) -> str:
    """Returns a hash of the file to start from, empty where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    if init is None:
        return ""
    try:
        return hashlib.sha256(locate(init).read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"no checkpoint file at {init}") from error


def start_from(network: Network, init: Path) -> str:
    """Takes over a checkpoint's weights: the backbone's, and the head's if it is built alike.

    Photos are then prepared with the file's mean, std and interpolation, where it tells them.

    Args:
        network: what is to be trained; its configuration is changed too.
        init: any checkpoint that can be read, or a backbone alone, perhaps with a classifier of
            its own.

    Returns:
        What was taken, in words.

    Raises:
        CheckpointError: it cannot be read, or its backbone is another.
        BackboneError: its preparation of photos cannot be.
    """
    bare = read_backbone(init)
    if bare is not None:
        _fill_backbone(network.backbone, bare.state)
        return "its backbone" + _take_pixels(network, _read_pixels(network, bare.described))
    name = network.config.backbone
    start = read_checkpoint(init, Hints(name))
    if start.config is None or start.config.backbone != name:
        raise CheckpointError(f"{init.name} holds no {name} to start from")
    assert isinstance(start.network, Network)  # it has a configuration
    fill(network.backbone, start.network.backbone.state_dict())
    pixels = _take_pixels(network, start.config.input)
    head = start.network.head
    if _describe(head) != _describe(network.head):
        return f"its backbone{pixels}; its head is built differently"
    network.head.load_state_dict(head.state_dict())
    return f"its backbone and its head{pixels}"


def _read_pixels(network: Network, described: Description) -> InputConfig:
    told = {name: value for name in _PIXELS if (value := described.preparation.get(name))}
    own = network.config.input
    return input_config(network.config.backbone, (own.height, own.width), told) if told else own


def _take_pixels(network: Network, found: InputConfig) -> str:
    """Returns what was taken, in words; nothing where the network has it already."""
    own = network.config.input
    taken = own.model_copy(update={name: getattr(found, name) for name in _PIXELS})
    if taken == own:
        return ""
    network.config = network.config.model_copy(update={"input": taken})
    return f", its mean {taken.mean}, std {taken.std} and {taken.interpolation} interpolation"


def _fill_backbone(backbone: Backbone, found: dict[str, Tensor]) -> None:
    own = backbone.body.state_dict()
    whole = take_pooled_norm(found, own)
    kept = {k: v for k, v in whole.items() if k in own or not k.startswith(_CLASSIFIERS)}
    fill(backbone.body, complete(kept, own))


def _describe(head: nn.Module) -> tuple[object, ...]:
    """Returns what two heads must have in common for the weights of one to do in the other."""
    shapes = {key: tuple(tensor.shape) for key, tensor in head.state_dict().items()}
    return shapes, *(getattr(head.config, name, None) for name in ("num_heads", "pre_norm"))
