"""Classifiers without a decoder: timm's, TResNets of ASL's authors, and those of training scripts.

The latter are a timm model under any name and a linear layer; their pooling, which is not in the
file, is taken as timm's.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from timm.layers import SelectAdaptivePool2d
from timm.models import ResNet
from torch import Tensor, nn

from models.backbones.backbone import flatten_features
from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts.body import (
    OFFICIAL_TRESNET_MARK,
    fill_model,
    find_name,
    list_names,
    prepare,
    read_body,
    take_body,
)
from models.checkpoints.layouts.state import LEAVES, find_prefix, refuse_others, take
from models.config import GapConfig, TimmHeadConfig
from models.meta import build_checked
from models.timm_model import classifier_names, create_timm, is_channels_last, read_class_names

logger = logging.getLogger(__name__)


def read_classifier(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a classifier; returns None if hints and file name no backbone of timm."""
    if find_prefix(state, [OFFICIAL_TRESNET_MARK]) is not None:
        return _read_asl(take_body(state, [OFFICIAL_TRESNET_MARK]), hints, described)
    name = find_name(hints, described)
    if name is None or not timm.is_model(name) or not classifier_names(name):
        if hints.backbone is not None and not timm.is_model(hints.backbone):
            raise CheckpointError(f"timm has no model named {hints.backbone!r}")
        return None
    layers = classifier_names(name)
    with torch.device("meta"):
        model, whole = (
            create_timm(name, None, {"num_classes": n}, described.model_args) for n in (0, 1)
        )
    parts = _split_body(state, model)
    if parts is None:
        marks = [f"{layers[0]}.weight", list_names(whole)[0]]
        return _read_timm(name, take_body(state, marks), hints, described)
    prefix, body, rest = parts
    classifier = {key: v for key, v in whole.state_dict().items() if key not in model.state_dict()}
    if rest.keys() == {f"{prefix}{key}" for key in classifier}:
        return _read_timm(name, body | take(rest, prefix), hints, described)
    if not rest:
        raise CheckpointError(f"the file has {name} without a classifier, and no head")
    layer = _find_linear(rest, model)
    ours = {f"{layers[0]}.{leaf}": rest[f"{layer}.{leaf}"] for leaf in LEAVES}
    if classifier.keys() != ours.keys():
        raise CheckpointError(f"{name} classifies by more than the one linear layer of the file")
    linear = {key: v.reshape(len(v), *classifier[key].shape[1:]) for key, v in ours.items()}
    logger.info(
        "read a classifier: %s under %r, its pooling taken as timm's (%s), linear layer %s",
        *(name, prefix, _find_pooling(model), layer),
    )
    return _read_timm(name, body | linear, hints, described)


def _split_body(state: State, model: Any) -> tuple[str, State, State] | None:  # noqa: ANN401
    """Finds all names of a model's tensors under a prefix.

    Returns it, the tensors under timm's names, and the file's others; raises CheckpointError.
    """
    # Older timm stored computed buffers.
    keys = [*model.state_dict(), *(key for key, _ in model.named_buffers())]
    namings = [{key: key for key in keys}]
    if isinstance(model, ResNet):  # as nn.Sequential(*model.children()) names them
        numbers = {child: str(i) for i, (child, _) in enumerate(model.named_children())}
        split = {key: key.partition(".") for key in keys}
        namings.append({key: f"{numbers[child]}.{leaf}" for key, (child, _, leaf) in split.items()})
    for names in namings:
        stored = [names[key] for key in list_names(model)]
        prefix = find_prefix(state, stored)
        if prefix is not None and all(f"{prefix}{name}" in state for name in stored):
            ours = {f"{prefix}{theirs}": key for key, theirs in names.items()}
            body = {key: state[theirs] for theirs, key in ours.items() if theirs in state}
            return prefix, body, {key: v for key, v in state.items() if key not in ours}
    return None


def _find_linear(rest: State, model: Any) -> str:  # noqa: ANN401
    """Returns the name of the only linear layer; raises CheckpointError if there is more."""
    layer = next((k for k, v in rest.items() if v.dim() > 1), "").removesuffix(".weight")
    if rest.keys() != {f"{layer}.{leaf}" for leaf in LEAVES}:
        raise CheckpointError(
            f"the file has {' and '.join(sorted(rest)[:4])} besides its backbone: only one linear "
            "layer with a bias is read. The activation between two is not in the file, and one "
            "without bias may be a cosine or margin head"
        )
    width = getattr(model, "head_hidden_size", None) or model.num_features
    given = rest[f"{layer}.weight"].shape[1]
    if given != width:
        why = ": a mean and a maximum, one after the other, are not read" * (given == 2 * width)
        raise CheckpointError(f"{layer} takes {given} features, the backbone gives {width}{why}")
    return layer


def _find_pooling(model: Any) -> str:  # noqa: ANN401
    kinds = (m.pool_type for m in model.modules() if isinstance(m, SelectAdaptivePool2d))
    return str(next(kinds, getattr(model, "global_pool", "avg")))


def _read_asl(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a TResNet of ASL's authors; returns None if it has no linear layer."""
    head = {k.removeprefix("head.").removeprefix("fc."): v for k, v in state.items()}
    linear = {leaf: head[leaf] for leaf in LEAVES if leaf in head}
    if "embedding_generator.0.weight" in head:
        # No activation between ASL's two linear layers, so they are merged.
        under, top = (
            {leaf: head[f"{layer}.{leaf}"].double() for leaf in LEAVES}
            for layer in ("embedding_generator.0", "FC")
        )
        if len(top["bias"]) * len(under["weight"][0]) > 8 * sum(v.numel() for v in state.values()):
            raise CheckpointError("the file's head has too few features to be merged")
        weight, bias = top["weight"] @ under["weight"], top["weight"] @ under["bias"] + top["bias"]
        linear = {"weight": weight.float(), "bias": bias.float()}
    if len(linear) != 2:
        return None
    body = {key: tensor for key, tensor in state.items() if key.startswith("body.")}
    refuse_others(key for key in state.keys() - body.keys() if not key.startswith("head."))
    classes, width = linear["weight"].shape
    body, facts = read_body(body, hints, described, width)
    config = GapConfig(num_classes=classes, encoder_width=width)
    head = {f"linear.{leaf}": tensor for leaf, tensor in linear.items()}
    return Weights(head, config, described.label_names).put_on(body, **facts)


def _read_timm(name: str, state: State, hints: Hints, described: Description) -> Weights:
    """Translates a classifier of timm, its tensors under timm's names."""
    spec = prepare(name, hints, described)
    weight = state.get(f"{classifier_names(name)[0]}.weight")
    classes = 1 if weight is None else len(weight)  # `fill_model` names a missing one
    create = partial(
        create_timm, name, (spec.height, spec.width), {"num_classes": classes}, described.model_args
    )

    def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
        # Older versions of timm stored these too.
        computed = {key for key, _ in model.named_buffers()} - model.state_dict().keys()
        kept = {key: tensor for key, tensor in state.items() if key not in computed}
        fill_model(name, model, kept, spec)

    model: Any = build_checked(create, state, fill).eval()
    state = model.state_dict()
    images = torch.rand(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        example, features = (images, model(images)), model.forward_features(images)
        if not isinstance(features, Tensor) or features.dim() not in (3, 4):
            raise CheckpointError(f"{name} gives no single map of features, and cannot be served")
        logits, parts = _run_head(model, features)
        if logits.shape != (1, classes):
            raise CheckpointError(
                f"{name} must give a logit a class; with its model_args it gives "
                f"{tuple(logits.shape[1:])}"
            )
        inside = {key: v for key, v in state.items() if key.partition(".")[0] in parts}
    body = {key: v for key, v in state.items() if key not in inside}
    labels = described.label_names or _find_imagenet_names(classes)
    facts = {"backbone": name, "model_args": described.model_args, "input": spec}
    sizes = tuple(features.shape[1:3] if is_channels_last(model) else features.shape[2:])
    head = TimmHeadConfig(
        num_classes=classes,
        encoder_width=flatten_features(model, features).shape[2],
        parts=parts,
        grid=sizes if features.dim() == 4 else None,
    )
    weights = Weights({f"model.{k}": v for k, v in inside.items()}, head, labels, example=example)
    return weights.put_on(body, **facts, prefix_tokens="keep")


def _run_head(model: Any, features: Tensor) -> tuple[Tensor, tuple[str, ...]]:  # noqa: ANN401
    """Returns the logits, and the names of the modules with weights that compute them."""
    run: set[str] = set()
    for path, module in model.named_modules():
        if path:
            part = path.partition(".")[0]
            module.register_forward_pre_hook(lambda *_, part=part: run.add(part))
    logits: Tensor = model.forward_head(features)
    parts = (name for name, child in model.named_children() if name in run and child.state_dict())
    return logits, tuple(parts)


def _find_imagenet_names(classes: int) -> tuple[str, ...] | None:
    """Returns the first lemma of each class; with its synset if two are the same."""
    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    names = read_class_names(subset)
    repeats = Counter(names)
    pairs = zip(names, ImageNetInfo(subset).label_names(), strict=True)
    return tuple(f"{name} ({synset})" if repeats[name] > 1 else name for name, synset in pairs)
