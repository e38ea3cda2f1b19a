"""The authors' RAM and RAM++ (xinyu1205/recognize-anything): on Swin, or their head alone."""

from collections.abc import Mapping

from torch import Tensor

from models.checkpoints.description import Hints, State, Weights
from models.checkpoints.layouts import backbones
from models.checkpoints.layouts.state import rename, take
from models.config import RamConfig

HEADS = ("tagging_head.", "vision_multi.")  # the second is the older name

_BODY = "visual_encoder."
_DEFAULT_HEADS = 4
_DESCRIPTIONS = 51  # of a tag in RAM++; a file has their total only
_ELSEWHERE = (_BODY, "tag_encoder.", "text_decoder.")  # the last two are of RAM's training
# The authors' names -> ours; the order matters.
_NAMES = (
    (r"^label_embed$", "labels"),
    (r"^reweight_scale$", "log_scale"),
    (r"^wordvec_proj\.", "project."),
    (r"^fc\.", "pool."),
    (r"^image_proj\.", "embed."),
    (r"^(?:tagging_head|vision_multi)\.encoder\.layer\.", "layers."),
    (r"\.crossattention\.self\.", ".attention."),
    (r"\.crossattention\.output\.dense\.", ".attention.out."),
    (r"\.crossattention\.output\.LayerNorm\.", ".norm1."),
    (r"\.intermediate\.dense\.", ".linear1."),
    (r"\.output\.dense\.", ".linear2."),
    (r"\.output\.LayerNorm\.", ".norm2."),
)


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
    head = {key: tensor for key, tensor in keys.items() if not key.startswith(_ELSEWHERE)}
    state = rename(head, _NAMES)
    width, text_width = keys["wordvec_proj.weight"].shape
    projects = "embed.weight" in state
    descriptions = _DESCRIPTIONS if "log_scale" in state else None
    if descriptions is not None:
        state["labels"] = state["labels"].unflatten(0, (-1, descriptions))
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
    return config, state
