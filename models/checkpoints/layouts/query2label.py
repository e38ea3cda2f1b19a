"""The authors' Query2Label (SlongLiu/query2labels): its head, alone or on one of its backbones."""

import re
from collections.abc import Mapping

from torch import Tensor

from models.checkpoints.description import Hints, State, Weights
from models.checkpoints.layouts import backbones
from models.checkpoints.layouts.state import refuse_others, rename, take, unpack_attentions
from models.config import Query2LabelConfig

MARK = "fc.W"  # in every Query2Label head
_BODY = "backbone.0."
_POSITIONS = "backbone.1.pe"  # the position table, which the authors store next to the backbone
_DEFAULT_HEADS = 4
_STRIDE = 32  # pixels a token, in all backbones
_PARTS = ("backbone.", "input_proj.", "transformer.", "query_embed.", "fc.")
# The authors' names -> ours; the order matters.
_NAMES = (
    (r"^transformer\.(encoder|decoder)\.layers\.", r"\1."),
    (r"^(encoder\.\d+)\.self_attn\.", r"\1.attention."),
    (r"^(decoder\.\d+)\.self_attn\.", r"\1.self_attention."),
    (r"\.multihead_attn\.", ".attention."),
    (r"\.(linear[12])\.", r".feedforward.\1."),
    (r"^transformer\.encoder\.norm\.", "encoder_norm."),
    (r"^transformer\.decoder\.norm\.", "norm."),
    (r"^input_proj\.", "embed."),
    (r"^query_embed\.weight$", "queries"),
    (r"^fc\.W$", "pool.weight"),
    (r"^fc\.b$", "pool.bias"),
    (rf"^{re.escape(_POSITIONS)}$", "positions"),
)


def read_query2label(state: State, hints: Hints, label_names: tuple[str, ...] | None) -> Weights:
    """Translates a whole network, or a head with its position table."""
    refuse_others(key for key in state if not key.startswith(_PARTS))
    config, head_state = _read_head(state, hints)
    head = Weights(head_state, config, label_names)
    body = take(state, _BODY)
    if not body:
        return head
    body, name = _read_backbone(body)
    spec = backbones.prepare_imagenet(*(_STRIDE * count for count in config.grid))
    return head.put_on(body, backbone=name, input=spec)


def _read_backbone(state: State) -> tuple[State, str]:
    """Returns (tensors under timm's names, backbone)."""
    candidates: tuple[str, ...]
    if "patch_embed.proj.weight" in state:
        state, candidates = backbones.rename_swin(state), backbones.SWINS
    elif "body.body.conv1.0.weight" in state:
        state, candidates = backbones.rename_tresnet(take(state, "body.")), backbones.TRESNETS
    else:
        state, candidates = take(state, "body."), backbones.RESNETS
    return state, backbones.recognise_one_of(state, candidates, "Query2Label")


def _read_head(keys: Mapping[str, Tensor], hints: Hints) -> tuple[Query2LabelConfig, State]:
    table = keys[_POSITIONS]
    head = {key: tensor for key, tensor in keys.items() if not key.startswith(_BODY)}
    state = rename(unpack_attentions(head), _NAMES)
    state["positions"] = table.flatten(2).transpose(1, 2).contiguous()  # [1, D, h, w] -> [1, S, D]
    state["pool.weight"] = keys["fc.W"].squeeze(0).unsqueeze(-1)  # [1, N, D] -> [N, D, 1]
    state["pool.bias"] = keys["fc.b"].squeeze(0)
    if "embed.weight" in state:
        state["embed.weight"] = state["embed.weight"].flatten(1)  # [D, C, 1, 1] -> [D, C]
    return _to_config(state, (table.shape[2], table.shape[3]), hints), state


def _to_config(state: State, grid: tuple[int, int], hints: Hints) -> Query2LabelConfig:
    num_classes, width = state["queries"].shape
    # Only a network with norms in front has a norm after the encoder.
    pre_norm = "encoder_norm.weight" in state if hints.pre_norm is None else hints.pre_norm
    encoders, decoders = (
        {key.split(".")[1] for key in state if key.startswith(stack)}
        for stack in ("encoder.", "decoder.")
    )
    if pre_norm and not encoders:  # the norm is stored and not used
        state.pop("encoder_norm.weight", None)
        state.pop("encoder_norm.bias", None)
    return Query2LabelConfig(
        num_classes=num_classes,
        encoder_width=state["embed.weight"].shape[1] if "embed.weight" in state else width,
        decoder_width=width,
        num_heads=hints.num_heads or _DEFAULT_HEADS,
        feedforward_width=len(state["decoder.0.feedforward.linear1.bias"]),
        grid=grid,
        num_encoder_layers=len(encoders),
        self_attention=tuple(
            f"decoder.{i}.self_attention.query.weight" in state for i in range(len(decoders))
        ),
        input_projection="embed.weight" in state,
        pre_norm=pre_norm,
    )
