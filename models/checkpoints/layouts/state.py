"""Unwraps the tensors of a foreign file, reads its description and renames tensors."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from models.checkpoints.description import CheckpointError, Description, State, read_names

# Prefer averaged (EMA) weights.
_WRAPPINGS = ("state_dict_ema", "model_ema", "ema", "model", "state_dict", "model_state_dict")
_AVERAGED = "module"  # a second wrapping of averaged weights
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+")  # of data-parallel and compiled networks
_COUNTER = "n_averaged"  # torch's AveragedModel counts in a tensor of its own
# Parts of names of a loss's weights and of a metric's state; no model of timm has them.
_TRAINING = re.compile(
    r"(.*\.)?(\w*(loss|criterion|metric)\w*|(train|valid|val|test)_\w+|pos_weight|class_weights?)(\..+)?"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """A foreign file's tensors under its authors' names, and its description."""

    state: State
    described: Description


def unwrap(content: object) -> Content:
    """Finds the tensors: a bare state dict, or one under a name of `_WRAPPINGS`."""
    if not isinstance(content, Mapping):
        raise CheckpointError("the checkpoint is not a dictionary of tensors")
    inner = _find_tensors(content)
    state = {
        _PREFIXES.sub("", str(key)): value
        for key, value in inner.items()
        if isinstance(value, Tensor) and key != _COUNTER
    }
    if len(state) != len(inner) - (_COUNTER in inner):
        raise CheckpointError(
            "the checkpoint has no dictionary of tensors, neither bare nor under one of "
            f"{', '.join(_WRAPPINGS)}"
        )
    return Content(state, _read_description(content))


def _read_description(content: Mapping[object, object]) -> Description:
    architecture, arguments = content.get("arch"), content.get("args")
    # Other scripts' arguments may mean something else by these names.
    from_timm = (
        isinstance(arguments, argparse.Namespace)
        and getattr(arguments, "model", "") == architecture
    )
    return Description(
        architecture if isinstance(architecture, str) else None,
        read_names(content.get("idx_to_class")),
        vars(arguments) if from_timm else {},
    )


def _find_tensors(content: Mapping[object, object]) -> Mapping[object, object]:
    for name in _WRAPPINGS:
        if isinstance(inner := content.get(name), Mapping):
            averaged = inner.get(_AVERAGED)
            return averaged if isinstance(averaged, Mapping) else inner
    return content


def leave_out_training(state: State) -> State:
    """Leaves out, and logs, the tensors of losses and metrics next to a network."""
    kept = {key: tensor for key, tensor in state.items() if not _TRAINING.fullmatch(key)}
    log_left_out(state.keys() - kept.keys(), "a loss or a metric, not of the network")
    return kept


def log_left_out(keys: Collection[str], reason: str) -> None:
    """Logs tensors that the network does not use."""
    if keys:
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        logger.info("left out %s%s: %s", min(keys), more, reason)


def refuse_others(keys: Iterable[str]) -> None:
    """Raises CheckpointError for tensors that are neither of a backbone nor of its head."""
    if found := sorted(keys):
        raise CheckpointError(
            f"the file has {found[0]} next to a backbone and a head: a network with other layers "
            "cannot be served"
        )


def take(state: Mapping[str, Tensor], prefix: str) -> State:
    """Returns the tensors under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def rename(state: Mapping[str, Tensor], names: Iterable[tuple[str, str]]) -> State:
    """Applies regular expressions and their replacements to each name, in their order."""
    renamed: State = {}
    for key, tensor in state.items():
        for pattern, replacement in names:
            key = re.sub(pattern, replacement, key)
        renamed[key] = tensor
    return renamed


def require(state: Mapping[str, Tensor], names: Iterable[str], head: str) -> None:
    """Raises CheckpointError if a head lacks one of these tensors."""
    missing = sorted(set(names) - set(state))
    if missing:
        raise CheckpointError(f"the checkpoint's {head} head is incomplete: no {missing[0]}")


def unpack_attention(packed: Mapping[str, Tensor]) -> State:
    """Renames the tensors of torch's `MultiheadAttention` or xFormers' `MultiHeadDispatch`.

    Torch packs the projections of query, key and value in one. Raises CheckpointError for missing
    tensors, and for others, such as `bias_k`, which change the result.
    """
    apart = any(key.startswith("in_proj_container.") for key in packed)
    state: State = {}
    read: set[str] = set()
    for leaf in ("weight", "bias"):
        packs = [f"in_proj_container.{part}_proj.{leaf}" for part in "qkv"]
        packs, out = (packs, f"proj.{leaf}") if apart else ([f"in_proj_{leaf}"], f"out_proj.{leaf}")
        for theirs in (*packs, out):
            if theirs not in packed:
                raise CheckpointError(f"the checkpoint lacks the attention's {theirs}")
        read |= {*packs, out}
        thirds = [packed[theirs] for theirs in packs] if apart else packed[packs[0]].chunk(3)
        for part, tensor in zip(("query", "key", "value"), thirds, strict=True):
            state[f"{part}.{leaf}"] = tensor.clone()
        state[f"out.{leaf}"] = packed[out]
    if others := sorted(packed.keys() - read):
        raise CheckpointError(f"the checkpoint's attention has {others[0]}, which is not supported")
    return state
