"""Foreign checkpoint layouts: other projects' key names, brought to this project's.

In: what `torch.load` gave. Out: a `ForeignState`: our key names, and the configuration read
off the tensors. Read here: the authors' ML-Decoder head alone (`decoder.*`) and on a timm
backbone (`fc.decoder.*`). Next: `checkpoints.py` builds the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from models.backbone import Backbone, input_config
from models.config import MLDecoderConfig, NetworkConfig

State = dict[str, Tensor]

# The authors' key below `decoder.` -> ours below the head. The packed `in_proj` and the
# group weights need more than a new name: see `_read_head`.
_HEAD_KEYS = {
    "embed_standart.weight": "embed.weight",
    "embed_standart.bias": "embed.bias",
    "query_embed.weight": "queries",
    "duplicate_pooling": "pool.weight",
    "duplicate_pooling_bias": "pool.bias",
    "layers.0.multihead_attn.out_proj.weight": "layer.attention.out.weight",
    "layers.0.multihead_attn.out_proj.bias": "layer.attention.out.bias",
    **{
        f"layers.0.{part}.{leaf}": f"layer.{part}.{leaf}"
        for part in ("linear1", "linear2", "norm1", "norm2", "norm3")
        for leaf in ("weight", "bias")
    },
}
_PACKED = "layers.0.multihead_attn.in_proj_"
_TIMM_HEAD = "fc."
_DEFAULT_HEADS = 8


class CheckpointError(Exception):
    """A checkpoint file cannot be read; the message is one line for a person."""


@dataclass(frozen=True)
class ForeignState:
    """A foreign checkpoint, translated.

    Attributes:
        state: tensors under our key names: a head's, or with `config` a whole network's.
        head: the head, as read off its tensors.
        config: the whole network; None where the file holds a head alone.
        label_names: N names, or None where the file does not tell.
    """

    state: State
    head: MLDecoderConfig
    config: NetworkConfig | None
    label_names: tuple[str, ...] | None


def read_foreign(
    content: object, backbone: str | None, image_size: int | None, num_heads: int | None
) -> ForeignState:
    """Translates a foreign checkpoint.

    Args:
        content: what the file held: a bare state dict, or one under `model` or
            `state_dict`, keys with or without `module.`.
        backbone: timm name, needed where the file holds a backbone.
        image_size: pixels; None takes the backbone's own.
        num_heads: attention heads; None means 8, the authors' number.

    Raises:
        CheckpointError: the layout is not one of those above.
    """
    state, label_names = _unwrap(content)
    if any(".self_attn." in key for key in state):
        raise CheckpointError(
            "the checkpoint has self-attention in its decoder: a look-alike network with "
            "vanilla decoder layers, not ML-Decoder"
        )
    prefix = _TIMM_HEAD if any(key.startswith(_TIMM_HEAD) for key in state) else ""
    head_prefix = f"{prefix}decoder."
    head_keys = {
        k.removeprefix(head_prefix): v for k, v in state.items() if k.startswith(head_prefix)
    }
    body = {key: value for key, value in state.items() if not key.startswith(head_prefix)}
    head, head_state = _read_head(head_keys, num_heads or _DEFAULT_HEADS)
    if not body:
        return ForeignState(head_state, head, None, label_names)
    config = _network_config(backbone, image_size, head)
    whole = {f"backbone.body.{key}": value for key, value in body.items()}
    whole |= {f"head.{key}": value for key, value in head_state.items()}
    return ForeignState(whole, head, config, label_names)


def _unwrap(content: object) -> tuple[State, tuple[str, ...] | None]:
    if not isinstance(content, Mapping):
        raise CheckpointError("the checkpoint is not a dictionary of tensors")
    inner = content.get("model", content.get("state_dict", content))
    if not isinstance(inner, Mapping) or not all(isinstance(v, Tensor) for v in inner.values()):
        raise CheckpointError("the checkpoint holds no dictionary of tensors")
    state = {str(key).removeprefix("module."): value for key, value in inner.items()}
    names = content.get("idx_to_class")
    if not isinstance(names, Mapping):
        return state, None
    return state, tuple(str(name) for name in names.values())


def _read_head(keys: Mapping[str, Tensor], num_heads: int) -> tuple[MLDecoderConfig, State]:
    wanted = {*_HEAD_KEYS, f"{_PACKED}weight", f"{_PACKED}bias"}
    missing = sorted(wanted - set(keys))
    if missing:
        raise CheckpointError(
            f"the checkpoint has no ML-Decoder head: decoder.{missing[0]} is absent"
        )
    state = {ours: keys[theirs] for theirs, ours in _HEAD_KEYS.items()}
    for leaf in ("weight", "bias"):
        for part, tensor in zip(
            ("query", "key", "value"), keys[f"{_PACKED}{leaf}"].chunk(3), strict=True
        ):
            state[f"layer.attention.{part}.{leaf}"] = tensor.clone()
    num_classes = len(state["pool.bias"])
    used = math.ceil(num_classes / state["pool.weight"].shape[-1])
    for name in ("queries", "pool.weight"):
        state[name] = state[name][:used].clone()  # groups past the last class are never read
    return _head_config(state, num_classes, used, num_heads), state


def _head_config(state: State, num_classes: int, used: int, num_heads: int) -> MLDecoderConfig:
    decoder_width, encoder_width = state["embed.weight"].shape
    try:
        return MLDecoderConfig(
            num_classes=num_classes,
            encoder_width=encoder_width,
            num_groups=used,
            decoder_width=decoder_width,
            num_heads=num_heads,
            feedforward_width=len(state["layer.linear1.bias"]),
        )
    except ValueError as error:
        raise CheckpointError(f"the ML-Decoder head cannot have {num_heads} heads") from error


def _network_config(
    backbone: str | None, image_size: int | None, head: MLDecoderConfig
) -> NetworkConfig:
    if backbone is None:
        raise CheckpointError("the file does not name its backbone: give --backbone (a timm name)")
    size = None if image_size is None else (image_size, image_size)
    try:
        width = Backbone(backbone, size).width
        prepared = input_config(backbone, size)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if width != head.encoder_width:
        raise CheckpointError(
            f"{backbone} gives tokens of width {width}, the file's head takes {head.encoder_width}"
        )
    return NetworkConfig(backbone=backbone, input=prepared, head=head)
