"""Classifiers without a decoder: timm's, and the authors' TResNets of ASL (arXiv 2009.14119)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.backbones.backbone import classifier_names, create_timm
from models.checkpoints.description import (
    CheckpointError,
    Description,
    Hints,
    State,
    Weights,
    join_parts,
)
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, check_names, read_body, strip
from models.config import GapConfig, NetworkConfig

MORE_THAN_POOLING = "more than pooling, a norm and linear layers, and cannot be served"

# Between two linear layers of ASL's head there is nothing, so that they are one.
_BOTTLENECK = "embedding_generator.0."
_BOTTLENECK_TOP = "FC."
_LEAVES: tuple[str, ...] = ("weight", "bias")


def read_classifier(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a classifier with a head of pooling, perhaps a norm, and a linear layer.

    Returns None if the name of its backbone is missing, or not one of timm's.
    """
    name = hints.backbone or described.architecture
    known = name is not None and timm.is_model(name)
    classifiers = classifier_names(name) if known and name is not None else ()
    state = strip(state, (OFFICIAL_TRESNET_MARK, *(f"{layer}.weight" for layer in classifiers)))
    if OFFICIAL_TRESNET_MARK in state:
        return _read_asl(state, hints, described)
    if hints.backbone is not None and not known:
        raise CheckpointError(f"timm has no model named {name!r}")
    if name is None or not classifiers:
        return None
    if not all(f"{layer}.weight" in state for layer in classifiers):
        _refuse(state, name, classifiers)
    return _read_timm(state, classifiers, name, hints, described)


def _read_asl(state: State, hints: Hints, described: Description) -> Weights | None:
    head = {k.removeprefix("head.").removeprefix("fc."): v for k, v in state.items()}
    linear = {leaf: head[leaf] for leaf in _LEAVES if leaf in head}
    if f"{_BOTTLENECK}weight" in head:
        top, under = (
            {leaf: head[f"{layer}{leaf}"].double() for leaf in _LEAVES}
            for layer in (_BOTTLENECK_TOP, _BOTTLENECK)
        )
        weight, bias = top["weight"] @ under["weight"], top["weight"] @ under["bias"] + top["bias"]
        linear = {"weight": weight.float(), "bias": bias.float()}
    if len(linear) != 2:
        return None
    body = {key: tensor for key, tensor in state.items() if key.startswith("body.")}
    found = read_body(body, hints, described, linear["weight"].shape[1])
    classes, width = linear["weight"].shape
    config = NetworkConfig(
        backbone=found.backbone,
        input=found.input,
        head=GapConfig(num_classes=classes, encoder_width=width),
    )
    return join_parts(found.state, _to_linear(linear), config, described.label_names)


def _read_timm(
    state: State, classifiers: Sequence[str], name: str, hints: Hints, described: Description
) -> Weights:
    # Two classifiers, the second for distillation, are averaged.
    linear = {
        leaf: torch.stack([state[f"{layer}.{leaf}"] for layer in classifiers]).mean(dim=0)
        for leaf in _LEAVES
    }
    classes, width = linear["weight"].shape[:2]
    head_state = _to_linear(linear)
    places = ("fc_norm", f"{classifiers[0].partition('.')[0]}.norm")
    norm = next((place for place in places if f"{place}.weight" in state), None)
    found = read_body(state, replace(hints, prefix_tokens="drop"), described, None)
    spec = found.input
    model = _load(create_timm(name, (spec.height, spec.width), {"num_classes": classes}), state)
    hidden = _find_hidden(model)
    if hidden is not None:
        head_state |= _to_linear(hidden[0].state_dict(), "hidden.0")
    elif width != model.num_features:
        raise CheckpointError(f"{name} classifies by {MORE_THAN_POOLING}")
    by_token = getattr(model, "global_pool", None) == "token"
    head = GapConfig(
        num_classes=classes,
        encoder_width=model.num_features,
        pooling="first" if by_token else "mean",
        norm_epsilon=None if norm is None else model.get_submodule(norm).eps,
        hidden_width=None if hidden is None else width,
        hidden_activation="relu" if hidden is None else hidden[1],
    )
    config = NetworkConfig(
        backbone=name, input=spec, head=head, prefix_tokens="keep" if by_token else "drop"
    )
    if norm is not None:
        head_state |= {f"norm.{leaf}": state[f"{norm}.{leaf}"] for leaf in _LEAVES}
    images = torch.rand(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        example = (images, model(images))
    names = described.label_names or _find_imagenet_names(classes)
    return replace(join_parts(found.state, head_state, config, names), example=example)


def _refuse(state: State, name: str, classifiers: Sequence[str]) -> NoReturn:
    own = timm.create_model(name).state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    behind = tuple(f"{layer}." for layer in classifiers)
    check_names(name, [key for key in missing if not key.startswith(behind)], extra)
    raise CheckpointError(f"the file has {name} without a classifier, and no head: no {behind[0]}*")


def _to_linear(layer: Mapping[str, Tensor], ours: str = "linear") -> State:
    # A convolution of one pixel is a linear layer.
    return {f"{ours}.{leaf}": tensor.reshape(tensor.shape[:2]) for leaf, tensor in layer.items()}


def _find_hidden(model: Any) -> tuple[nn.Module, Literal["relu", "hardswish"]] | None:  # noqa: ANN401
    """Returns the convolution that MobileNets have behind their pooling, and its activation."""
    if getattr(model, "head_hidden_size", None) in (None, model.num_features):
        return None
    layer, norm = getattr(model, "conv_head", None), getattr(model, "norm_head", nn.Identity())
    activation = getattr(norm, "act", getattr(model, "act2", None))
    if not isinstance(layer, nn.Conv2d) or not isinstance(activation, nn.ReLU | nn.Hardswish):
        return None
    if isinstance(norm, nn.BatchNorm2d):
        layer = fuse_conv_bn_eval(layer, norm)
    return layer, "relu" if isinstance(activation, nn.ReLU) else "hardswish"


def _load(model: Any, state: State) -> Any:  # noqa: ANN401 - timm's, with attributes of its own
    try:
        model.load_state_dict(state, strict=False)  # the body's tensors were compared
    except RuntimeError as error:  # of shapes
        raise CheckpointError("the file's tensors have other shapes than the model's") from error
    return model.eval()


def _find_imagenet_names(classes: int) -> tuple[str, ...] | None:
    """Returns the first lemma of each class; with its synset if two are the same."""
    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    names = [lemmas.partition(",")[0] for lemmas in info.label_descriptions()]
    repeats = Counter(names)
    pairs = zip(names, info.label_names(), strict=True)
    return tuple(f"{name} ({synset})" if repeats[name] > 1 else name for name, synset in pairs)
