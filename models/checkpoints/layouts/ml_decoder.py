"""The authors' ML-Decoder head, also in timm's copy: full, group and zero-shot."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from models.checkpoints.description import CheckpointError, State
from models.checkpoints.layouts.state import (
    build_filled,
    find_prefix,
    log_left_out,
    rename,
    take,
    unpack_attentions,
)
from models.config import MLDecoderConfig, ZeroShotMLDecoderConfig
from models.heads.attention import Attention

MARK = "embed_standart.weight"  # in every ML-Decoder head, below the head's own prefix

_DEFAULT_HEADS = 8
_LAYER = "decoder.layers.0."
_ATTENTION = f"{_LAYER}multihead_attn."

# The authors' names -> ours.
_NAMES = (
    (r"^decoder\.layers\.0\.", "layer."),
    (r"^layer\.multihead_attn\.", "layer.attention."),
    (r"^decoder\.embed_standart\.", "embed."),
    (r"^decoder\.query_embed\.weight$", "queries"),
    (r"^decoder\.duplicate_pooling$", "pool.weight"),
    (r"^decoder\.duplicate_pooling_bias$", "pool.bias"),
    (r"^wordvec_proj\.", "project."),
)

# First parts of a head's names below its own prefix; like the authors' first version, timm's copy
# has only the layers below `decoder.`.
_PARTS = ("decoder.", "wordvec_proj.")
_BARE_PARTS = ("embed_standart.", "query_embed.", "duplicate_pooling")


def split_head(state: Mapping[str, Tensor]) -> tuple[str, State, State] | None:
    """Finds the head in a file, under any prefix; None if there is none.

    Returns its prefix, its tensors (names from `decoder.` or `wordvec_proj.` on) and all others.
    """
    prefix = find_prefix(state, [MARK])
    if prefix is None:
        return None
    prefix = prefix.removesuffix("decoder.")
    parts = tuple(f"{prefix}{part}" for part in (*_PARTS, *_BARE_PARTS))
    head = take({key: tensor for key, tensor in state.items() if key.startswith(parts)}, prefix)
    head = {k if k.startswith(_PARTS) else f"decoder.{k}": v for k, v in head.items()}
    return prefix, head, {key: tensor for key, tensor in state.items() if not key.startswith(parts)}


def read_ml_decoder(
    keys: Mapping[str, Tensor], num_heads: int | None
) -> tuple[MLDecoderConfig | ZeroShotMLDecoderConfig, State]:
    """Translates a head, whose names start at `decoder.` or `wordvec_proj.`."""
    keys, self_attention = _split_attentions(keys)
    zero_shot = any(key.startswith("wordvec_proj.") for key in keys)
    if self_attention and zero_shot:
        raise CheckpointError(
            "the checkpoint has self-attention between open labels (vanilla decoder layers): a "
            "score would depend on the other labels"
        )
    state = rename(unpack_attentions(keys), _NAMES)
    if self_attention:  # all queries attend to each other, also those of groups without classes
        state["queries"] = _fold_self_attention(
            state["queries"], self_attention, num_heads or _DEFAULT_HEADS
        )
    decoder_width, encoder_width = state["embed.weight"].shape
    fields = {
        "encoder_width": encoder_width,
        "decoder_width": decoder_width,
        "feedforward_width": len(state["layer.linear1.bias"]),
        "num_heads": num_heads or _DEFAULT_HEADS,
    }
    return (_read_zero_shot if zero_shot else _read_trained)(state, fields), state


def _split_attentions(keys: Mapping[str, Tensor]) -> tuple[State, State]:
    """Returns the head with its attention to the image as `multihead_attn`, and self-attention.

    Since torch 2.1, `nn.TransformerDecoder` wants a `self_attn`: the attention to the image under
    this name or both, one that is never used, or that of torch's own layer.
    """
    named, crossed = take(keys, f"{_LAYER}self_attn."), take(keys, _ATTENTION)
    rest = {k: v for k, v in keys.items() if not k.startswith(f"{_LAYER}self_attn.")}
    if not crossed:
        return rest | {f"{_ATTENTION}{k}": v for k, v in named.items()}, {}
    same = named.keys() == crossed.keys() and all(named[k].equal(crossed[k]) for k in named)
    return rest, {} if not named or same or _is_idle(named) else named


def _is_idle(attention: State) -> bool:
    """Whether no gradient ever reached an attention: its biases are still 0, as torch makes them.

    Raises CheckpointError if some of them are, or there are none.
    """
    trained = {bool(tensor.any()) for key, tensor in attention.items() if key.endswith("bias")}
    if len(trained) != 1:
        raise CheckpointError(
            "the checkpoint has a self_attn and a multihead_attn, and the biases of the first do "
            "not show whether it was used: if not, store the tensors without it"
        )
    if idle := not trained.pop():
        keys = [f"{_LAYER}self_attn.{key}" for key in attention]
        log_left_out(keys, "an attention that was never trained, since its biases are 0")
    return idle


def _fold_self_attention(queries: Tensor, packed: State, num_heads: int) -> Tensor:
    """Folds self-attention into fixed queries: torch normalises q + attention(q), ours q + q."""
    whole = queries.double().unsqueeze(0)
    attention = build_filled(
        lambda: Attention(queries.shape[1], num_heads).double(), unpack_attentions(packed)
    )
    with torch.no_grad():
        folded: Tensor = ((whole + attention(whole, whole, whole)) / 2)[0]
    return folded.to(queries.dtype)


def _read_trained(state: State, fields: dict[str, int]) -> MLDecoderConfig:
    num_classes = len(state["pool.bias"])
    used = math.ceil(num_classes / state["pool.weight"].shape[-1])
    for name in ("queries", "pool.weight"):
        state[name] = state[name][:used].clone()  # groups past the last class are never read
    return MLDecoderConfig(num_classes=num_classes, num_groups=used, **fields)


def _read_zero_shot(state: State, fields: dict[str, int]) -> ZeroShotMLDecoderConfig:
    if tuple(state["pool.weight"].shape[1:]) != (1,) or tuple(state["pool.bias"].shape) != (1,):
        raise CheckpointError("the checkpoint's zero-shot head has more than one shared pooling")
    state["pool.weight"] = state["pool.weight"].T.clone()  # [D, 1] -> [1, D]
    return ZeroShotMLDecoderConfig(embedding_width=state["project.weight"].shape[1], **fields)
