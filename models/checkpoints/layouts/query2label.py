"""The authors' Query2Label head (SlongLiu/query2labels)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import ValidationError
from torch import Tensor

from models.checkpoints.description import CheckpointError, Hints, State
from models.checkpoints.layouts.state import take, unpack_attention
from models.config import Query2LabelConfig

MARK = "fc.W"  # in every Query2Label head
POSITIONS = "backbone.1.pe"  # the position table, which the authors store beside the backbone
_DEFAULT_HEADS = 4
_WANTED = (POSITIONS, "query_embed.weight", "fc.W", "fc.b")
_PARTS = re.compile(r"(self_attn|multihead_attn|linear1|linear2|norm1|norm2|norm3)\.")
_OUR_PARTS = {
    "linear1": "feedforward.linear1",
    "linear2": "feedforward.linear2",
    "norm1": "norm1",
    "norm2": "norm2",
    "norm3": "norm3",
}


def read_query2label(keys: Mapping[str, Tensor], hints: Hints) -> tuple[Query2LabelConfig, State]:
    """Translates a head, its position table included."""
    missing = sorted(set(_WANTED) - set(keys))
    if missing:
        raise CheckpointError(f"the checkpoint's Query2Label head is incomplete: no {missing[0]}")
    table = keys[POSITIONS]
    if table.dim() != 4:
        raise CheckpointError(f"the checkpoint's position table has shape {tuple(table.shape)}")
    encoder = _read_layers(keys, "transformer.encoder.layers.")
    decoder = _read_layers(keys, "transformer.decoder.layers.")
    state = {
        "positions": table.flatten(2).transpose(1, 2).contiguous(),  # [1, D, h, w] -> [1, S, D]
        "queries": keys["query_embed.weight"],
        "pool.weight": keys["fc.W"].squeeze(0).unsqueeze(-1),  # [1, N, D] -> [N, D, 1]
        "pool.bias": keys["fc.b"].squeeze(0),
        **_join(encoder, "encoder", {"self_attn": "attention"}),
        **_join(decoder, "decoder", {"self_attn": "self_attention", "multihead_attn": "attention"}),
        **_rename(keys, "transformer.encoder.norm.", "encoder_norm."),
        **_rename(keys, "transformer.decoder.norm.", "norm."),
        **_rename(keys, "input_proj.", "embed."),
    }
    if "embed.weight" in state:
        state["embed.weight"] = state["embed.weight"].flatten(1)  # [D, C, 1, 1] -> [D, C]
    try:
        config = _to_config(state, (table.shape[2], table.shape[3]), hints)
    except (ValidationError, KeyError, ValueError) as error:
        raise CheckpointError("the checkpoint's Query2Label head is impossible") from error
    return config, state


def _to_config(state: State, grid: tuple[int, int], hints: Hints) -> Query2LabelConfig:
    num_classes, width = state["queries"].shape
    # Only a network with norms in front has a norm behind the encoder.
    pre_norm = "encoder_norm.weight" in state if hints.pre_norm is None else hints.pre_norm
    encoders = {key.split(".")[1] for key in state if key.startswith("encoder.")}
    if pre_norm and not encoders:  # the norm is stored and not used
        state.pop("encoder_norm.weight", None)
        state.pop("encoder_norm.bias", None)
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("decoder."))
    return Query2LabelConfig(
        num_classes=num_classes,
        encoder_width=state["embed.weight"].shape[1] if "embed.weight" in state else width,
        decoder_width=width,
        num_heads=hints.num_heads or _DEFAULT_HEADS,
        feedforward_width=len(state["decoder.0.feedforward.linear1.bias"]),
        grid=grid,
        num_encoder_layers=len(encoders),
        self_attention=tuple(
            f"decoder.{i}.self_attention.query.weight" in state for i in range(depth)
        ),
        input_projection="embed.weight" in state,
        pre_norm=pre_norm,
    )


def _read_layers(keys: Mapping[str, Tensor], prefix: str) -> dict[str, State]:
    """Returns the tensors of each part: `0.linear1` -> {weight, bias}."""
    layers: dict[str, State] = {}
    for key, tensor in take(keys, prefix).items():
        index, _, rest = key.partition(".")
        found = _PARTS.match(rest)
        if not index.isdecimal() or found is None:
            raise CheckpointError(f"the checkpoint has {prefix}{key}, which no Query2Label has")
        layers.setdefault(f"{index}.{found[1]}", {})[rest[found.end() :]] = tensor
    return layers


def _join(layers: Mapping[str, State], ours: str, attentions: Mapping[str, str]) -> State:
    state: State = {}
    for name, tensors in layers.items():
        index, _, part = name.partition(".")
        if part in attentions:
            part, tensors = attentions[part], unpack_attention(tensors)
        elif part in _OUR_PARTS:
            part = _OUR_PARTS[part]
        state |= {f"{ours}.{index}.{part}.{leaf}": tensor for leaf, tensor in tensors.items()}
    return state


def _rename(keys: Mapping[str, Tensor], theirs: str, ours: str) -> State:
    return {f"{ours}{leaf}": tensor for leaf, tensor in take(keys, theirs).items()}
