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
from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, check_names, read_body, strip
from models.config import GapConfig

MORE_THAN_POOLING = "more than pooling, a norm and linear layers, and cannot be served"

_LEAVES = ("weight", "bias")


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
    if "embedding_generator.0.weight" in head:
        # No activation between ASL's two linear layers, so they are merged.
        under, top = (
            {leaf: head[f"{layer}.{leaf}"].double() for leaf in _LEAVES}
            for layer in ("embedding_generator.0", "FC")
        )
        weight, bias = top["weight"] @ under["weight"], top["weight"] @ under["bias"] + top["bias"]
        linear = {"weight": weight.float(), "bias": bias.float()}
    if len(linear) != 2:
        return None
    body = {key: tensor for key, tensor in state.items() if key.startswith("body.")}
    classes, width = linear["weight"].shape
    found = read_body(body, hints, described, width)
    config = GapConfig(num_classes=classes, encoder_width=width)
    ours = Weights(_to_linear(linear), config, described.label_names)
    return ours.put_on(found.state, backbone=found.backbone, input=found.input)


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
    if norm is not None:
        head_state |= {f"norm.{leaf}": state[f"{norm}.{leaf}"] for leaf in _LEAVES}
    found = read_body(state, replace(hints, prefix_tokens="drop"), described, None)
    spec = found.input
    model: Any = create_timm(name, (spec.height, spec.width), {"num_classes": classes})
    try:
        model.load_state_dict(state, strict=False)  # the body's tensors were compared
    except RuntimeError as error:  # of shapes
        raise CheckpointError("the file's tensors have other shapes than the model's") from error
    hidden, activation = _find_hidden(model.eval())
    if hidden is not None:
        head_state |= _to_linear(hidden.state_dict(), "hidden.0")
    elif width != model.num_features:
        raise CheckpointError(f"{name} classifies by {MORE_THAN_POOLING}")
    by_token = getattr(model, "global_pool", None) == "token"
    head = GapConfig(
        num_classes=classes,
        encoder_width=model.num_features,
        pooling="first" if by_token else "mean",
        norm_epsilon=None if norm is None else model.get_submodule(norm).eps,
        hidden_width=None if hidden is None else width,
        hidden_activation=activation,
    )
    images = torch.rand(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        example = (images, model(images))
    names = described.label_names or _find_imagenet_names(classes)
    return Weights(head_state, head, names, example=example).put_on(
        found.state, backbone=name, input=spec, prefix_tokens="keep" if by_token else "drop"
    )


def _refuse(state: State, name: str, classifiers: Sequence[str]) -> NoReturn:
    own = timm.create_model(name).state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    after = tuple(f"{layer}." for layer in classifiers)
    check_names(name, [key for key in missing if not key.startswith(after)], extra)
    raise CheckpointError(f"the file has {name} without a classifier, and no head: no {after[0]}*")


def _to_linear(layer: Mapping[str, Tensor], ours: str = "linear") -> State:
    # A convolution of one pixel is a linear layer.
    return {f"{ours}.{leaf}": tensor.reshape(tensor.shape[:2]) for leaf, tensor in layer.items()}


def _find_hidden(model: Any) -> tuple[nn.Module | None, Literal["relu", "hardswish"]]:  # noqa: ANN401
    """Returns the convolution that MobileNets have after their pooling, and its activation."""
    if getattr(model, "head_hidden_size", None) in (None, model.num_features):
        return None, "relu"
    layer, norm = getattr(model, "conv_head", None), getattr(model, "norm_head", nn.Identity())
    activation = getattr(norm, "act", getattr(model, "act2", None))
    if not isinstance(layer, nn.Conv2d) or not isinstance(activation, nn.ReLU | nn.Hardswish):
        return None, "relu"
    if isinstance(norm, nn.BatchNorm2d):
        layer = fuse_conv_bn_eval(layer, norm)
    return layer, "relu" if isinstance(activation, nn.ReLU) else "hardswish"


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
