"""Unwraps the tensors of a foreign file, reads its description and renames tensors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from models.checkpoints.description import CheckpointError, Description, State, read_names

# Prefer averaged (EMA) weights.
_WRAPPINGS = ("state_dict_ema", "model_ema", "ema", "model", "state_dict", "model_state_dict")
_AVERAGED = "module"  # a second wrapping of averaged weights
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+")  # of data-parallel and compiled networks
# Options of timm's training script -> arguments of its models.
_OPTIONS = {"gp": "global_pool", "bn_eps": "bn_eps"}
_COUNTER = "n_averaged"  # torch's AveragedModel counts in a tensor of its own


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
    given = vars(arguments) if from_timm else {}
    options = {name: given.get(key) for key, name in _OPTIONS.items()}
    return Description(
        architecture if isinstance(architecture, str) else None,
        read_names(content.get("idx_to_class")),
        given,
        {k: v for k, v in (options | (given.get("model_kwargs") or {})).items() if v is not None},
    )


def _find_tensors(content: Mapping[object, object]) -> Mapping[object, object]:
    for name in _WRAPPINGS:
        if isinstance(inner := content.get(name), Mapping):
            averaged = inner.get(_AVERAGED)
            return averaged if isinstance(averaged, Mapping) else inner
    return content


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
    """Renames torch's `MultiheadAttention` and splits its packed projection in three."""
    state: State = {}
    for leaf in ("weight", "bias"):
        for theirs in (f"in_proj_{leaf}", f"out_proj.{leaf}"):
            if theirs not in packed:
                raise CheckpointError(f"the checkpoint lacks the attention's {theirs}")
        thirds = packed[f"in_proj_{leaf}"].chunk(3)
        for part, tensor in zip(("query", "key", "value"), thirds, strict=True):
            state[f"{part}.{leaf}"] = tensor.clone()
        state[f"out.{leaf}"] = packed[f"out_proj.{leaf}"]
    return state
