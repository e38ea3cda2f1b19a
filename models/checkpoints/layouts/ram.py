"""The authors' RAM and RAM++ (xinyu1205/recognize-anything): on Swin, or their head alone."""

import re
from collections.abc import Mapping

from pydantic import ValidationError
from torch import Tensor

from models.checkpoints.description import CheckpointError, Hints, State, Weights
from models.checkpoints.layouts import backbones
from models.checkpoints.layouts.state import LEAVES, require, take
from models.config import RamConfig

HEADS = ("tagging_head.", "vision_multi.")  # the second is the older name

_BODY = "visual_encoder."
_DEFAULT_HEADS = 4
_DESCRIPTIONS = 51  # of a tag in RAM++; a file has their total only
_ELSEWHERE = (_BODY, "tag_encoder.", "text_decoder.")  # the last two are of RAM's training
_WANTED = ("label_embed", "wordvec_proj.weight", "fc.weight")
_TENSORS = {
    "label_embed": "labels",
    "reweight_scale": "log_scale",
    **{
        f"{theirs}.{leaf}": f"{ours}.{leaf}"
        for theirs, ours in (("wordvec_proj", "project"), ("fc", "pool"), ("image_proj", "embed"))
        for leaf in LEAVES
    },
}
_LAYER = re.compile(r"(?:tagging_head|vision_multi)\.encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")
_PARTS = {
    "crossattention.self.query": "attention.query",
    "crossattention.self.key": "attention.key",
    "crossattention.self.value": "attention.value",
    "crossattention.output.dense": "attention.out",
    "crossattention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}


def is_ram(state: Mapping[str, Tensor]) -> bool:
    """Whether the tensors are of RAM or RAM++."""
    return any(key.startswith(HEADS) for key in state)


def read_ram(state: State, hints: Hints, label_names: tuple[str, ...] | None) -> Weights:
    """Translates a whole network, or a head with or without the projection of image tokens."""
    config, head_state = _read_head(state, hints)
    head = Weights(head_state, config, label_names)
    body = backbones.rename_swin(take(state, _BODY))
    if not body:
        return head
    name = backbones.recognise_one_of(body, backbones.SWINS, "RAM")
    size = int(name.rpartition("_")[2])
    return head.put_on(body, backbone=name, input=backbones.prepare_imagenet(size, size))


def _read_head(keys: Mapping[str, Tensor], hints: Hints) -> tuple[RamConfig, State]:
    require(keys, _WANTED, "RAM")
    state = {_rename(k): tensor for k, tensor in keys.items() if not k.startswith(_ELSEWHERE)}
    width, text_width = state["project.weight"].shape
    projects = "embed.weight" in state
    descriptions = _DESCRIPTIONS if "log_scale" in state else None
    if descriptions is not None:
        rows = len(state["labels"])
        if rows % descriptions:
            raise CheckpointError(
                f"label_embed has {rows} rows, not {descriptions} descriptions for each tag"
            )
        state["labels"] = state["labels"].unflatten(0, (-1, descriptions))
    try:
        config = RamConfig(
            num_classes=len(state["labels"]),
            encoder_width=state["embed.weight"].shape[1] if projects else text_width,
            decoder_width=width,
            text_width=text_width,
            num_descriptions=descriptions,
            num_heads=hints.num_heads or _DEFAULT_HEADS,
            feedforward_width=len(state["layers.0.linear1.bias"]),
            num_layers=len({key.split(".")[1] for key in state if key.startswith("layers.")}),
            image_projection=projects,
        )
    except (ValidationError, KeyError) as error:
        raise CheckpointError("the checkpoint's RAM head is impossible") from error
    return config, state


def _rename(key: str) -> str:
    match = _LAYER.fullmatch(key)
    if match is not None and match[2] in _PARTS:
        return f"layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"
    if key not in _TENSORS:
        raise CheckpointError(f"the checkpoint has {key}, which no RAM has")
    return _TENSORS[key]
