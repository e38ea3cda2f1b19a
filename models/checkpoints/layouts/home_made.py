"""Finds the classifiers that `classifier.py` reads: ASL's, timm's, and those of training scripts.

The latter are a timm model under any name and a linear layer. A file does not show their pooling:
unless it has GeM's power, it is timm's own.
"""

import logging
import math
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.layers import SelectAdaptivePool2d
from timm.models import ResNet

from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, find_name, take_body
from models.checkpoints.layouts.classifier import read_asl, read_timm
from models.checkpoints.layouts.state import COUNTERS, LEAVES, find_prefixes, take
from models.config import GapConfig, NetworkConfig
from models.timm_model import classifier_names, create_timm

logger = logging.getLogger(__name__)


def read_home_made(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a classifier of one linear layer; None without the name of a backbone of timm."""
    if find_prefixes(state, OFFICIAL_TRESNET_MARK):
        return read_asl(take_body(state, OFFICIAL_TRESNET_MARK), hints, described)
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
    found = _find_body(state, model)
    if found is None:
        return read_timm(name, take_body(state, f"{layers[0]}.weight"), hints, described)
    prefix, body, rest = found
    classifier = {key: v for key, v in whole.state_dict().items() if key not in model.state_dict()}
    if rest.keys() == {f"{prefix}{key}" for key in classifier}:
        return read_timm(name, body | take(rest, prefix), hints, described)
    powers = [k for k, v in rest.items() if k.rpartition(".")[2] == "p" and v.numel() == 1]
    head = {key: tensor for key, tensor in rest.items() if key not in powers[:1]}
    if not head:
        raise CheckpointError(f"the file has {name} without a classifier, and no head")
    layer = _find_linear(head, model)
    ours = {f"{layers[0]}.{leaf}": head[f"{layer}.{leaf}"] for leaf in LEAVES}
    if classifier.keys() != ours.keys():
        raise CheckpointError(f"{name} classifies by more than the one linear layer of the file")
    linear = {key: v.reshape(len(v), *classifier[key].shape[1:]) for key, v in ours.items()}
    pooling = "GeM" if powers else f"timm's ({_find_pooling(model)})"
    logger.info(
        "read a classifier: %s under %r, its pooling taken as %s, linear layer %s",
        *(name, prefix, pooling, layer),
    )
    weights = read_timm(name, body | linear, hints, described)
    return _pool(weights, float(rest[powers[0]]), powers[0]) if powers else weights


def _find_body(state: State, model: Any) -> tuple[str, State, State] | None:  # noqa: ANN401
    """Finds all names of a model's tensors under a prefix.

    Returns it, the tensors under timm's names, and the file's others. Raises CheckpointError if
    they are there twice.
    """
    own = model.state_dict()
    wanted = [key for key in own if not key.endswith(COUNTERS)]
    keys = [*own, *(key for key, _ in model.named_buffers())]  # older timm stored computed ones
    namings = [{key: key for key in keys}]
    if isinstance(model, ResNet):  # as nn.Sequential(*model.children()) names them
        numbers = {child: str(i) for i, (child, _) in enumerate(model.named_children())}
        split = {key: key.partition(".") for key in keys}
        namings.append({key: f"{numbers[child]}.{leaf}" for key, (child, _, leaf) in split.items()})
    found = [
        (prefix, names)
        for names in namings
        for prefix in find_prefixes(state, names[wanted[0]])
        if all(f"{prefix}{names[each]}" in state for each in wanted)
    ]
    if not found:
        return None
    if len(found) > 1:
        places = " and ".join(f"{prefix}*" for prefix, _ in found[:2])
        raise CheckpointError(
            f"the checkpoint has several networks, {places}: store the tensors of the one to serve"
        )
    ((prefix, names),) = found
    ours = {f"{prefix}{theirs}": key for key, theirs in names.items()}
    body = {key: state[theirs] for theirs, key in ours.items() if theirs in state}
    return prefix, body, {key: tensor for key, tensor in state.items() if key not in ours}


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
    found = (m.pool_type for m in model.modules() if isinstance(m, SelectAdaptivePool2d))
    return str(next(found, getattr(model, "global_pool", "avg")))


def _pool(weights: Weights, power: float, place: str) -> Weights:
    config = weights.config
    assert isinstance(config, NetworkConfig)
    head = config.head
    if not isinstance(head, GapConfig) or head.pooling != "mean" or not 0 < power < math.inf:
        raise CheckpointError(
            f"{place} is the power of GeM pooling, which {config.backbone} cannot have in place of "
            "its own pooling"
        )
    changed = head.model_copy(update={"pooling": "gem", "power": power})
    return replace(weights, config=config.model_copy(update={"head": changed}), example=None)
