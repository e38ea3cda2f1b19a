"""Classifiers that a training script assembled: a timm model under any name, and a linear layer.

Gives their tensors timm's own names, for `classifier.py`. A file does not show its pooling: unless
it has GeM's power, it is timm's own.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import timm
import torch
from timm.layers import SelectAdaptivePool2d
from timm.models import ResNet
from torch import Tensor

from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts import backbones
from models.checkpoints.layouts.classifier import read_classifier
from models.checkpoints.layouts.kinds import refuse_no_tagger
from models.config import GapConfig, NetworkConfig
from models.timm_model import classifier_names, create_timm

logger = logging.getLogger(__name__)

_COUNTERS = "num_batches_tracked"
_LEAVES = ("weight", "bias")
_MEAN = re.compile(r"((.*\.)?(pixel_|image_)?)mean")


@dataclass(frozen=True)
class _Body:
    prefix: str
    state: State  # under timm's names
    rest: State  # the file's other tensors


def take_normaliser(
    state: State, hints: Hints, described: Description
) -> tuple[State, Description]:
    """Takes mean and std out of a network that normalises its pixels itself.

    Pixels of 0 to 255 are scaled to 0 to 1. Raises CheckpointError if a hint contradicts them.
    """
    pairs = {
        key: f"{found[1]}std"
        for key, tensor in state.items()
        if (found := _MEAN.fullmatch(key)) and tensor.numel() == 3 and f"{found[1]}std" in state
    }
    if len(pairs) != 1:
        return state, described  # a reader refuses what is left
    ((mean, std),) = pairs.items()
    if hints.plain_pixels:
        raise CheckpointError(
            f"the network normalises its pixels itself, by {mean}: leave out --plain-pixels"
        )
    values = {"mean": state[mean].flatten().double(), "std": state[std].flatten().double()}
    scale = 255 if max(values["mean"].max(), values["std"].max()) > 1 else 1
    known = {name: tuple((value / scale).tolist()) for name, value in values.items()}
    logger.info("mean and std of photos are the network's own: %s and %s", mean, std)
    rest = {key: tensor for key, tensor in state.items() if key not in (mean, std)}
    return rest, replace(described, preparation={**described.preparation, **known})


def read_home_made(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a classifier; raises CheckpointError if it is more than one linear layer.

    Returns None if the name of its backbone is missing, or not one of timm's.
    """
    name = hints.backbone or described.architecture
    if name is None or not timm.is_model(name) or not classifier_names(name):
        return read_classifier(state, hints, described)
    whole = _find_body(state, _create(name, 1))
    if whole is not None and not whole.rest:
        return read_classifier(whole.state, hints, described)
    body = _find_body(state, model := _create(name, 0))
    if body is None:
        refuse_no_tagger(state)
        return read_classifier(state, hints, described)
    powers = [k for k, v in body.rest.items() if k.rpartition(".")[2] == "p" and v.numel() == 1]
    head = {key: tensor for key, tensor in body.rest.items() if key not in powers[:1]}
    if not head:
        return read_classifier(body.state, hints, described)
    layer = _find_linear(head, model)
    linear = _rename_linear({leaf: head[f"{layer}.{leaf}"] for leaf in _LEAVES}, name, model)
    pooling = "GeM" if powers else f"timm's ({_find_pooling(model)})"
    logger.info(
        "read a classifier: %s under %r, its pooling taken as %s, linear layer %s",
        *(name, body.prefix, pooling, layer),
    )
    weights = read_classifier(body.state | linear, hints, described)
    if weights is None or not powers:
        return weights
    return _pool(weights, float(body.rest[powers[0]]), powers[0])


def suggest_backbone(state: State) -> str | None:
    """Returns a ResNet whose tensors are in a file under any prefix."""
    for name in backbones.RESNETS:
        own = (model := _create(name, 0)).state_dict()
        body = _find_body(state, model)
        if body and all(tensor.shape == own[key].shape for key, tensor in body.state.items()):
            return name
    return None


def _create(name: str, classes: int) -> Any:  # noqa: ANN401
    with torch.device("meta"):
        return create_timm(name, None, {"num_classes": classes})


def _find_body(state: Mapping[str, Tensor], model: Any) -> _Body | None:  # noqa: ANN401
    """Finds all names of a model's tensors under a prefix.

    Raises CheckpointError if they are there twice.
    """
    wanted = [key for key in model.state_dict() if not key.endswith(_COUNTERS)]
    # Older versions of timm stored buffers that are computed.
    keys = dict.fromkeys([*model.state_dict(), *(key for key, _ in model.named_buffers())])
    numbers = {child: str(i) for i, (child, _) in enumerate(model.named_children())}
    namings = [{key: key for key in keys}]
    if isinstance(model, ResNet):  # as nn.Sequential(*model.children()) names them
        split = {key: key.partition(".") for key in keys}
        namings.append({key: f"{numbers[child]}.{leaf}" for key, (child, _, leaf) in split.items()})
    found = [
        (prefix, names)
        for names in namings
        for key in state
        if key.endswith(anchor := names[wanted[0]])
        and (prefix := key.removesuffix(anchor))[-1:] in ("", ".")
        and all(f"{prefix}{names[each]}" in state for each in wanted)
    ]
    if len(found) > 1:
        places = " and ".join(f"{prefix}*" for prefix, _ in found[:2])
        raise CheckpointError(
            f"the checkpoint has several networks, {places}: store the tensors of the one to serve"
        )
    for prefix, names in found:
        ours = {f"{prefix}{theirs}": key for key, theirs in names.items()}
        rest = {key: tensor for key, tensor in state.items() if key not in ours}
        return _Body(prefix, {ours[key]: state[key] for key in ours if key in state}, rest)
    return None


def _find_linear(rest: State, model: Any) -> str:  # noqa: ANN401
    """Returns the name of the only linear layer; raises CheckpointError if there is more."""
    width = getattr(model, "head_hidden_size", None) or model.num_features
    layers = [
        key.removesuffix(".weight")
        for key, tensor in rest.items()
        if key.endswith(".weight") and tensor.dim() > 1
    ]
    if len(layers) > 1:
        raise CheckpointError(
            f"the file has {' and '.join(layers[:2])} after its backbone: an activation between "
            "them is not in the file, and of two heads only one is served"
        )
    wanted = {f"{layer}.{leaf}" for layer in layers for leaf in _LEAVES}
    if others := sorted(rest.keys() - wanted):
        raise CheckpointError(
            f"the file has {others[0]} besides its backbone: only one linear layer is read"
        )
    if rest.keys() != wanted:
        raise CheckpointError(
            f"{layers[0]} has no bias, so it may be a cosine or margin head, which is not read"
        )
    given = rest[f"{layers[0]}.weight"].shape[1]
    if given != width:
        why = ": a mean and a maximum, one after the other, are not read" * (given == 2 * width)
        raise CheckpointError(
            f"{layers[0]} takes {given} features, the backbone gives {width}{why}"
        )
    return layers[0]


def _rename_linear(layer: State, name: str, model: Any) -> State:  # noqa: ANN401
    whole = _create(name, len(layer["bias"])).state_dict()
    ours = {f"{classifier_names(name)[0]}.{leaf}": tensor for leaf, tensor in layer.items()}
    if whole.keys() - model.state_dict().keys() != ours.keys():
        raise CheckpointError(f"{name} classifies by more than the one linear layer of the file")
    return {key: tensor.reshape(whole[key].shape) for key, tensor in ours.items()}


def _find_pooling(model: Any) -> str:  # noqa: ANN401
    found = (m.pool_type for m in model.modules() if isinstance(m, SelectAdaptivePool2d))
    return str(next(found, getattr(model, "global_pool", "avg")))


def _pool(weights: Weights, power: float, place: str) -> Weights:
    config = weights.config
    assert isinstance(config, NetworkConfig)
    head = config.head
    plain = isinstance(head, GapConfig) and head == GapConfig(
        num_classes=head.num_classes, encoder_width=head.encoder_width
    )
    if not plain or not 0 < power < math.inf:
        raise CheckpointError(
            f"{place} is the power of GeM pooling, which {config.backbone} cannot have in place of "
            "its own pooling"
        )
    changed = head.model_copy(update={"pooling": "gem", "power": power})
    return replace(weights, config=config.model_copy(update={"head": changed}), example=None)
