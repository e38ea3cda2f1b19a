"""timm's models by name and arguments, which may come from a stranger's file."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo
from torch import nn

from models.commands import RequestError
from models.config import ModelArgument

# Arguments that are set here, or that choose no architecture.
_OURS = {"args", "kwargs", "cfg", "num_classes", "in_chans", "img_size", "device", "dtype"}
# Largest number, and sum of a list, in an argument: the widest of timm's models has 6,144 channels,
# the deepest 201 layers. 10,000 blocks take minutes to build, even on the meta device.
_MAX_NUMBER, _MAX_COUNT = 16384, 512
_COUNTS = re.compile("depth|layers|blocks|block_config|stages|window_size")
_MAX_BYTES = 4 << 30  # of parameters and buffers; an ONNX file has at most 2 GB, in 16 bits
# Of tables that a model computes: BEiT of 512 pixels has 200 MB, a window of 128 pixels 2 GB.
_MAX_TABLES = 1 << 29


class BackboneError(RequestError, ValueError):
    """The backbone is unknown, or does not exist in this size or with these arguments."""


def create_timm(
    name: str,
    image_size: tuple[int, int] | None,
    options: Mapping[str, Any],
    arguments: Mapping[str, ModelArgument] = MappingProxyType({}),
) -> nn.Module:
    """Builds a timm model with random weights, for an image size if the model is bound to one.

    `options` replace `arguments`, which are a file's. Raises BackboneError for an argument that is
    not the architecture's own or that timm rejects, and, before it takes memory, for over 4 GiB.
    """
    if not timm.is_model(name):  # timm would fetch `hf-hub:` names, and read folders
        raise BackboneError(f"timm has no model named {name!r}")
    _check_arguments(name, arguments)
    options = {**arguments, **options}
    try:
        with torch.device("meta"):
            model = _build(name, image_size, options)
    except Exception as error:  # timm's models raise many types
        if not arguments:
            raise
        given = ", ".join(f"{key}={value!r:.80}" for key, value in arguments.items())
        reason = str(error).partition("\n")[0]
        raise BackboneError(f"timm cannot build {name} with {given}: {reason}") from error
    tables = sum(table.nbytes for table in model.buffers())
    size = tables + sum(parameter.nbytes for parameter in model.parameters())
    if size > _MAX_BYTES or tables > _MAX_TABLES:
        raise BackboneError(
            f"{name} has {size / 1e9:.1f} GB of weights and tables: too large to be exported"
        )
    if torch.empty(0).is_meta:  # the caller wants no memory either
        return model
    return _build(name, image_size, options)


def _build(name: str, image_size: tuple[int, int] | None, options: Mapping[str, Any]) -> nn.Module:
    if image_size is not None:
        try:
            return timm.create_model(name, pretrained=False, img_size=image_size, **options)
        except TypeError:
            pass  # convolutional models take no image size
    return timm.create_model(name, pretrained=False, **options)


def _check_arguments(name: str, arguments: Mapping[str, ModelArgument]) -> None:
    for key, value in arguments.items():
        if key not in _list_arguments(name):
            raise BackboneError(f"the model_args have {key}, which is no argument of {name}")
        parts = value if isinstance(value, tuple) else (value,)
        most = _MAX_COUNT if _COUNTS.search(key) else _MAX_NUMBER
        if not sum(abs(part) for part in parts if not isinstance(part, str)) <= most:
            raise BackboneError(f"the model_args have {key}={value!r:.80}: too large")


@cache
def _list_arguments(name: str) -> frozenset[str]:
    with torch.device("meta"):
        built = type(timm.create_model(name, pretrained=False))
    # Some classes pass their arguments on to the next one.
    classes = [parent for parent in built.__mro__ if parent.__module__.startswith("timm.")]
    return frozenset(key for kind in classes for key in inspect.signature(kind).parameters) - _OURS


def is_channels_last(model: nn.Module) -> bool:
    """Whether a model's map of features is [B, H, W, C] in place of [B, C, H, W]."""
    return bool(getattr(model, "output_fmt", "NCHW") == "NHWC")


def classifier_names(name: str) -> tuple[str, ...]:
    """Returns the names of a timm model's classifying layers, such as `head.fc`; one, or two."""
    names = pretrained_cfg(name).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def read_class_names(subset: str) -> tuple[str, ...]:
    """Returns the first synonym of each class in timm's list of a subset of ImageNet, in order."""
    synonyms = ImageNetInfo(subset).label_descriptions()
    return tuple(names.partition(",")[0].strip() for names in synonyms)


def pretrained_cfg(name: str) -> dict[str, Any]:
    """Returns timm's description of a model's published weights, empty if there is none."""
    config = timm.get_pretrained_cfg(name)
    return {} if config is None else config.to_dict()
