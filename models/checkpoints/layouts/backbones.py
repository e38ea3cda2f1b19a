"""Backbones inside foreign checkpoints: recognised by their tensors, renamed to timm's names."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.tresnet import TRESNET_D, TRESNET_V2_XL
from models.checkpoints.description import CheckpointError, State
from models.checkpoints.layouts.state import COUNTERS, rename
from models.config import InputConfig

# The three of ML-Decoder's authors, ML-Danbooru's, then Query2Label's older two.
TRESNETS = (*("tresnet_m", "tresnet_v2_l", TRESNET_V2_XL, TRESNET_D), *("tresnet_l", "tresnet_xl"))
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101")
SWINS = tuple(
    f"swin_{size}_patch4_{window}"
    for size in ("large", "base")
    for window in ("window12_384", "window7_224")
)

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of its photos
_ABN_EPSILON = 1e-5
_FRELU = ".depthwise_conv_bn."  # ML-Danbooru's activation, in networks with plain batch norms

# The order matters: a convolution followed by a blur is nested one level deeper.
_TRESNET_NAMES = (
    (r"(conv\d)\.0\.([012])\.", r"\1.\2."),
    (r"(conv\d)\.0\.", r"\1.conv."),
    (r"(conv\d)\.1\.", r"\1.bn."),
    (r"(conv\d)\.2\.", r"\1.bn.act."),
    (r"\.relu\.", ".act."),
    (r"depthwise_conv_bn\.0\.", "conv."),
    (r"depthwise_conv_bn\.1\.", "bn."),
    (r"(downsample\.\d)\.0\.", r"\1.conv."),
    (r"(downsample\.\d)\.1\.", r"\1.bn."),
)

# torchvision's DenseNet, in its files and in those of CheXNet -> timm. CheXNet's classifier is a
# linear layer and a sigmoid.
_DENSENET_NAMES = (
    (r"\b(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2."),
    (r"\bclassifier\.0\.", "classifier."),
)


def recognise(state: Mapping[str, Tensor], candidates: Iterable[str]) -> str | None:
    """Returns the first backbone with these tensors; the counters of batch norms may be missing."""
    shapes = _shapes(state)
    for name in candidates:
        with torch.device("meta"):
            body = Backbone(name).body
        if _shapes(body.state_dict()) == shapes:
            return name
    return None


def recognise_one_of(state: Mapping[str, Tensor], candidates: Iterable[str], authors: str) -> str:
    """Returns the backbone; raises CheckpointError if it is none of the candidates."""
    name = recognise(state, candidates)
    if name is None:
        raise CheckpointError(
            f"the checkpoint's backbone is none of {authors}'s that can be read: "
            f"{', '.join(candidates)}"
        )
    return name


def prepare_imagenet(height: int, width: int) -> InputConfig:
    """Returns the preparation of photos of Query2Label and RAM."""
    return InputConfig(height=height, width=width, mean=_IMAGENET[0], std=_IMAGENET[1])


def rename_tresnet(state: Mapping[str, Tensor]) -> State:
    """Renames an official TResNet (`body.*`) to timm's names.

    Its InPlaceABN uses |weight| + epsilon, which timm's batch norms take as weights. If none is
    below epsilon, the authors' InplacABN_to_ABN has converted them already.
    """
    renamed = rename(state, _TRESNET_NAMES)
    norms = [key for key in renamed if key.endswith(".bn.weight")]
    plain = any(_FRELU in key for key in state)
    if not plain and any((renamed[key] < _ABN_EPSILON).any() for key in norms):
        renamed |= {key: renamed[key].abs() + _ABN_EPSILON for key in norms}
    return renamed


def rename_densenet(state: State) -> State:
    """Renames torchvision's DenseNet to timm's names; other networks stay as they are."""
    is_densenet = any(".denselayer1." in key for key in state)
    return rename(state, _DENSENET_NAMES) if is_densenet else state


def rename_swin(state: Mapping[str, Tensor]) -> State:
    """Renames the authors' Swin: theirs downsamples at the end of a stage, timm's at the start."""
    return {
        re.sub(r"(?<=^layers\.)\d(?=\.downsample)", lambda stage: str(int(stage[0]) + 1), key): v
        for key, v in state.items()
        if not key.endswith(("relative_position_index", "attn_mask"))
    }


def take_pooled_norm(state: Mapping[str, Tensor], body: Mapping[str, Tensor]) -> State:
    """Uses the norm after a network's pooling as the norm of each token.

    The mean of normalised tokens (`norm`) is not the normalised mean (`fc_norm`): this is a start
    for training, not what the network computed. `body` are its tensors without pooling.
    """
    renamed = {k: k.removeprefix("fc_") for k in state if k.startswith("fc_norm.")}
    wanted = body.keys() - state.keys()
    return {renamed[k] if renamed.get(k) in wanted else k: v for k, v in state.items()}


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in state.items() if not k.endswith(COUNTERS)}
