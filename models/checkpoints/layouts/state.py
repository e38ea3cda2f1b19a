"""What a foreign checkpoint holds: tensors out of any wrapping, and their translation.

In: what `torch.load` gave. Out: a flat dictionary of tensors; later a `ForeignState`.
Next: `reader.py`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from models.config import HeadConfig, NetworkConfig

State = dict[str, Tensor]


class CheckpointError(Exception):
    """A checkpoint file cannot be read; the message is one line for a person."""


@dataclass(frozen=True)
class Hints:
    """What a file cannot tell; None leaves the matter to the file or to the authors' default.

    Attributes:
        backbone: timm name, where the file holds a backbone that its tensors do not name.
        image_size: pixels on a side.
        num_heads: attention heads; the authors' 8 in ML-Decoder, 4 in Query2Label.
        pre_norm: Query2Label with the norms before the attention.
    """

    backbone: str | None = None
    image_size: int | None = None
    num_heads: int | None = None
    pre_norm: bool | None = None


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
    head: HeadConfig
    config: NetworkConfig | None
    label_names: tuple[str, ...] | None


@dataclass(frozen=True)
class Description:
    """What is said of a network beside its tensors, in the file or in one that lies by it.

    Attributes:
        architecture: its name in words of its authors; or None.
        label_names: N names, or None.
        preparation: of photos, in timm's words: `input_size`, `img_size`, `mean`, `std`,
            `interpolation`; what is absent or None is the architecture's own.
    """

    architecture: str | None = None
    label_names: tuple[str, ...] | None = None
    preparation: Mapping[str, object] = field(default_factory=dict)

    def complete(self, other: Description) -> Description:
        """Returns this description, with what another says of what this one leaves open."""
        return Description(
            self.architecture or other.architecture,
            self.label_names or other.label_names,
            {**other.preparation, **self.preparation},
        )


NOTHING_BESIDE = Description()


@dataclass(frozen=True)
class Content:
    """What a foreign file holds, out of its wrapping.

    Attributes:
        state: tensors under the authors' names.
        described: what the file says of them.
    """

    state: State
    described: Description


# Averaged weights are kept beside the last ones, and are those to serve.
_WRAPPINGS = ("state_dict_ema", "model_ema", "ema", "model", "state_dict", "model_state_dict")
_AVERAGED = "module"  # what some wrap the averaged ones in once more
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+")  # of data-parallel and compiled networks
_COUNTER = "n_averaged"  # torch's AveragedModel counts in a tensor of its own


def unwrap(content: object) -> Content:
    """Takes the tensors and what describes them out of a file's content.

    Args:
        content: a bare state dict, or one under a name of `_WRAPPINGS`; keys with or without
            `module.`.

    Raises:
        CheckpointError: there is no dictionary of tensors.
    """
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
            "the checkpoint holds no dictionary of tensors, neither bare nor under one of "
            f"{', '.join(_WRAPPINGS)}"
        )
    return Content(state, _read_description(content))


def _read_description(content: Mapping[object, object]) -> Description:
    architecture, told = content.get("arch"), content.get("args")
    # Other scripts' arguments may mean something else by these names.
    from_timm = isinstance(told, argparse.Namespace) and getattr(told, "model", "") == architecture
    return Description(
        architecture if isinstance(architecture, str) else None,
        read_names(content.get("idx_to_class")),
        vars(told) if from_timm else {},
    )


def _find_tensors(content: Mapping[object, object]) -> Mapping[object, object]:
    for name in _WRAPPINGS:
        inner = content.get(name)
        if isinstance(inner, Mapping):
            averaged = inner.get(_AVERAGED)
            return averaged if isinstance(averaged, Mapping) else inner
    return content


def read_names(names: object) -> tuple[str, ...] | None:
    """Returns names in the order of their numbers; None where these are not 0 to N - 1."""
    if isinstance(names, list | tuple):
        names = dict(enumerate(names))
    if not isinstance(names, Mapping):
        return None
    numbered = {str(number): str(name) for number, name in names.items()}
    numbers = [str(number) for number in range(len(names))]
    return tuple(numbered[n] for n in numbers) if numbered.keys() == set(numbers) else None


def take(state: Mapping[str, Tensor], prefix: str) -> State:
    """Returns the tensors under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def unpack_attention(packed: Mapping[str, Tensor]) -> State:
    """Renames a torch `MultiheadAttention`, its packed projection in three, as ours.

    Raises:
        CheckpointError: a tensor is absent.
    """
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
