"""A backbone beneath an ML-Decoder head or a classifier: TResNet, or a named timm model."""

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, input_config
from models.backbones.tresnet import TRESNET_D, TRESNET_V2_XL
from models.checkpoints.description import CheckpointError, Description, Hints, State
from models.checkpoints.layouts import backbones
from models.checkpoints.layouts.state import (
    COUNTERS,
    find_prefix,
    log_left_out,
    refuse_others,
    take,
    try_to_fill,
)
from models.checkpoints.preparation import PREPROCESS
from models.config import Features, InputConfig
from models.timm_model import classifier_names

OFFICIAL_TRESNET_MARK = "body.conv1.0.weight"

# The authors' evaluation size, which a file does not contain; their other models use 448.
_TRESNET_SIZE = 448
_TRESNET_SIZES = {TRESNET_V2_XL: 640}
_TRESNET_MARK = "body.conv1.conv.weight"
_STATISTICS = "running_mean"


def read_body(
    state: State, hints: Hints, described: Description, width: int, head_prefix: str = ""
) -> tuple[State, dict[str, Any]]:
    """Reads a backbone under timm's names, and its fields of `NetworkConfig`.

    `width` is that of the tokens that the head takes, `head_prefix` that of the head's tensors in
    the file. Raises CheckpointError or BackboneError.
    """
    state = take_body(take_body(state, [OFFICIAL_TRESNET_MARK]), [_TRESNET_MARK])
    official = OFFICIAL_TRESNET_MARK in state
    if official:
        state = backbones.rename_tresnet(state)
    name = find_name(hints, described)
    # A file that names a timm model was trained with timm, which has its own sizes.
    of_timm = described.architecture is not None and timm.is_model(described.architecture)
    if official or (_TRESNET_MARK in state and not of_timm):
        return _read_tresnet(state, hints, described)
    if name is None or (hints.backbone is None and not of_timm):
        body = take(state, find_prefix(state, ["conv1.weight", "layer1.0.conv1.weight"]) or "")
        fitting = backbones.recognise(body, backbones.RESNETS)
        example = "" if fitting is None else f", for example {fitting}, whose tensors fit"
        raise CheckpointError(
            f"the file does not name its backbone: give --backbone (a timm name{example})"
        )
    spec = prepare(name, hints, described)
    norm_pooled = any(f".{key}".endswith(".fc_norm.weight") for key in state)
    features: Features = hints.features or "forward_features"
    build = partial(
        Backbone,
        name,
        (spec.height, spec.width),
        features=features,
        norm_pooled=norm_pooled,
        model_args=described.model_args,
    )
    with torch.device("meta"):
        model = build().body
        state = take_body(state, list_names(model))
        sizes = [sum(map(Tensor.numel, some.values())) for some in (model.state_dict(), state)]
        # Refuses a forged file before memory is allocated. `efficientvit_b0` without its own head,
        # which an authors' head replaces, has a third of its numbers.
        if sizes[0] > 4 * sizes[1]:
            fill_model(name, model, {key: tensor.to("meta") for key, tensor in state.items()}, spec)
    backbone = build()
    body = _fit(state, backbone, spec)
    log_left_out(state.keys() - body.keys(), "the backbone's own classifier")
    if hints.features is None and body.keys() <= state.keys():
        features = _find_features(state, backbone, spec, width, head_prefix)
    if features == backbone.features and width != backbone.width:
        raise CheckpointError(
            f"{name} gives tokens of width {backbone.width}, the file's head takes {width}"
        )
    if backbone.prefix_tokens and hints.prefix_tokens is None:
        raise CheckpointError(
            f"{name} has {backbone.prefix_tokens} class or register tokens, and the file does not "
            "show whether its head was trained on them: give --prefix-tokens keep (as the "
            "authors' add_ml_decoder_head) or drop"
        )
    return body, {
        "backbone": name,
        "input": spec,
        "features": features,
        "norm_pooled": norm_pooled,
        "model_args": described.model_args,
    }


def find_name(hints: Hints, described: Description) -> str | None:
    """Returns the backbone's name; raises CheckpointError if hint and file name two of timm's."""
    names = [name for name in (hints.backbone, described.architecture) if name is not None]
    if len({name.partition(".")[0] for name in names if timm.is_model(name)}) > 1:
        raise CheckpointError(f"the file has {names[1]}: leave out --backbone {names[0]}")
    return names[0] if names else None


def list_names(model: nn.Module) -> list[str]:
    """Returns the names of a model's tensors that every file of it has."""
    return [key for key in model.state_dict() if not key.endswith(COUNTERS)]


def take_body(state: State, names: Sequence[str]) -> State:
    """Takes a network from any prefix, else `state`; raises CheckpointError for other tensors."""
    prefix = find_prefix(state, names)
    if prefix is None:
        return state
    refuse_others(key for key in state if not key.startswith(prefix))
    return take(state, prefix)


def _read_tresnet(
    state: State, hints: Hints, described: Description
) -> tuple[State, dict[str, Any]]:
    name = backbones.recognise(state, backbones.TRESNETS)
    if name is None:
        _refuse_fused("TResNet", [_STATISTICS], state)
        raise CheckpointError("the checkpoint's backbone is a TResNet of unknown size")
    if name == TRESNET_D and hints.image_size is None:
        raise CheckpointError(
            "the file is ML-Danbooru's TResNet-D and has no image size: give --image-size (its "
            "authors use 448, 512 and 640)"
        )
    size = _TRESNET_SIZES.get(name, _TRESNET_SIZE)
    return state, {"backbone": name, "input": prepare(name, hints, described, (size, size))}


def prepare(
    name: str, hints: Hints, described: Description, size: tuple[int, int] | None = None
) -> InputConfig:
    """Returns the preparation of photos: as hinted, else as described, else the backbone's own.

    `size` (H, W) replaces the backbone's own if neither gives one. Raises CheckpointError for a
    DenseNet without interpolation: timm's name and tensors are torchvision's, which differ by it.
    """
    known = {key: value for key, value in described.preparation.items() if value is not None}
    if hints.interpolation is not None:
        known["interpolation"] = hints.interpolation
    if name.startswith("densenet") and "interpolation" not in known and not described.photos:
        raise CheckpointError(
            "the file does not show whether its DenseNet was trained by torchvision or by timm: "
            "give --interpolation bilinear (torchvision, CheXNet) or bicubic (timm)"
        )
    if hints.image_size is not None:
        size = (hints.image_size, hints.image_size)
    elif known.keys() & {"input_size", "img_size"}:
        size = None
    spec, photos = input_config(name, size, known, crop=hints.crop), described.photos
    hints.check_size(name, spec)
    if photos is None:
        return spec
    sides = {"height": spec.height, "width": spec.width}
    if hints.image_size is None and sides != photos.model_dump(include=set(sides)):
        raise CheckpointError(
            f"{PREPROCESS} has photos of {photos.height} x {photos.width} pixels, {name} takes "
            f"{spec.height} x {spec.width}: give --image-size"
        )
    return photos.model_copy(update=sides)


def _fit(state: State, backbone: Backbone, spec: InputConfig) -> State:
    """Returns exactly the backbone's tensors, perhaps without the counters of batch norms.

    Leaves out its own classifier. Tensors that tokens do not depend on are zeros: the authors'
    `add_ml_decoder_head` removes all of `head`. Fills the backbone; raises CheckpointError.
    """
    model = backbone.body.state_dict()
    classifiers = tuple(f"{name}." for name in classifier_names(backbone.name))
    body = {k: v for k, v in state.items() if k in model or not k.startswith(classifiers)}
    missing = [key for key in list_names(backbone.body) if key not in body]
    if body.keys() <= model.keys() and not _reads(backbone, missing, spec):
        body |= {key: torch.zeros_like(model[key]) for key in missing}
    fill_model(backbone.name, backbone.body, body, spec)
    return body


def fill_model(name: str, model: nn.Module, state: State, spec: InputConfig) -> None:
    """Fills a timm model; raises CheckpointError unless names and shapes are its own."""
    _refuse_fused(name, model.state_dict(), state)
    if reason := try_to_fill(model, state):
        raise CheckpointError(
            f"the file's tensors are not those of {name} for {spec.height} x {spec.width} pixels: "
            f"{reason}"
        )


@torch.inference_mode()
def _find_features(
    state: State, backbone: Backbone, spec: InputConfig, width: int, head_prefix: str
) -> Features:
    """Returns the method whose features a head of this width was trained on.

    Raises CheckpointError if both fit and differ, and the file does not show which it was.
    """
    classifiers = tuple(f"{name}." for name in classifier_names(backbone.name))
    if any(key.startswith(classifiers) for key in state):
        return "forward_features"  # `forward` would give the scores of this classifier
    body = cast("Any", backbone.eval().body)
    images = torch.rand(1, 3, spec.height, spec.width)
    try:
        features, whole = body.forward_features(images), body(images)
    except Exception:  # timm's models raise many types
        return "forward_features"
    if whole.dim() < features.dim() or (whole.shape == features.shape and whole.allclose(features)):
        return "forward_features"  # the others are pooled, or the same
    given = backbone.as_tokens(whole).shape[2]
    if given != backbone.width:
        return "forward" if given == width else "forward_features"
    if any("." in name and f".{head_prefix}".endswith(f".{name}") for name in classifiers):
        return "forward"  # the head is in the place of the model's own
    raise CheckpointError(
        f"the file does not show whether its head was trained on {backbone.name}(images) or on its "
        "forward_features(images), which differ: give --features forward or --features "
        "forward_features"
    )


def _reads(backbone: Backbone, keys: Collection[str], spec: InputConfig) -> bool:
    """Whether tokens depend on these tensors; fills these with NaN."""
    if not keys:
        return False
    model = backbone.body.state_dict()
    for key in keys:
        model[key].fill_(math.nan)
    with torch.inference_mode():
        tokens = backbone.eval()(torch.zeros(1, 3, spec.height, spec.width))
    return not bool(tokens.isfinite().all())


def _refuse_fused(name: str, model: Collection[str], file: Collection[str]) -> None:
    of_model, of_file = (any(k.endswith(_STATISTICS) for k in keys) for keys in (model, file))
    if of_model and not of_file:
        raise CheckpointError(
            f"the file's batch norms are fused into the convolutions of its {name}, which cannot "
            "be read: give the weights before fuse_bn_recursively"
        )
