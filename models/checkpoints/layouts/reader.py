"""Recognises a foreign checkpoint's layout and translates it.

The authors' ML-Decoder head alone, on their TResNet and on any timm backbone, in timm's naming
too; the authors' Query2Label head alone and on each of their backbones; RAM and RAM++ on Swin, and
their heads alone; classifiers without a decoder.
"""

from __future__ import annotations

import re

from models.backbones.cvt import CVTS
from models.backbones.cvt import STRIDE as CVT_STRIDE
from models.checkpoints.description import (
    CheckpointError,
    Description,
    Hints,
    State,
    Weights,
    join_parts,
)
from models.checkpoints.layouts import backbones, ml_decoder, query2label, ram
from models.checkpoints.layouts.body import OFFICIAL_TRESNET_MARK, read_body
from models.checkpoints.layouts.classifier import read_classifier
from models.checkpoints.layouts.state import Content, take, unwrap
from models.config import InputConfig, NetworkConfig

# The network's prefix in the module that trained it, then a tensor of every head.
_HEAD = re.compile(
    r"((?:(?:model|net|network|module|_orig_mod)\.)*)(?:.*\.)?"
    rf"(?:{re.escape(ml_decoder.MARK)}|{re.escape(query2label.MARK)})"
)

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_STRIDE = 32  # pixels a token, in Query2Label's backbones except CvT


def read_foreign(content: object, hints: Hints, beside: Description) -> Weights:
    """Translates a file's content; facts of a file `beside` it override its own."""
    found = unwrap(content)
    state, described = _take_network(found.state), beside.complete(found.described)
    if query2label.MARK in state:
        return _read_query2label(state, hints, described.label_names)
    if ram.is_ram(state):
        return _read_ram(state, hints, described.label_names)
    parts = ml_decoder.split_head(state)
    if parts is not None:
        return _read_ml_decoder(*parts, hints, described)
    classifier = read_classifier(state, hints, described)
    if classifier is None:
        raise CheckpointError(
            "the checkpoint has no head of ML-Decoder, Query2Label or RAM: there is neither "
            f"{ml_decoder.MARK} nor {query2label.MARK} nor {ram.HEADS[0]}*; if it is a classifier "
            "of timm, give its name with --backbone"
        )
    return classifier


def read_bare_backbone(content: object, beside: Description) -> Content | None:
    """Reads a backbone, its tensors under timm's names; None if the file has a known head too.

    A classifier of the backbone's own stays among the tensors.
    """
    found = unwrap(content)
    state = found.state
    if any(_HEAD.fullmatch(key) for key in state):
        return None
    state = backbones.rename_tresnet(state) if OFFICIAL_TRESNET_MARK in state else state
    return Content(state, beside.complete(found.described))


def _take_network(state: State) -> State:
    """Takes a network out of the module that trained it, such as Lightning's.

    Other tensors of that module, such as weights of a loss, are left out.
    """
    heads = [found for key in state if (found := _HEAD.fullmatch(key))]
    if len(heads) > 1:
        raise CheckpointError(
            f"the checkpoint has several networks, with {heads[0][0]} and {heads[1][0]}: "
            "store the tensors of the one to serve"
        )
    return take(state, heads[0][1]) if heads else state


def _read_ml_decoder(
    place: str, head_keys: State, body: State, hints: Hints, described: Description
) -> Weights:
    head, head_state = ml_decoder.read_ml_decoder(head_keys, hints.num_heads)
    if not body:
        return Weights(head_state, head, described.label_names)
    found = read_body(body, hints, described, head.encoder_width, place)
    config = NetworkConfig(
        backbone=found.backbone,
        input=found.input,
        head=head,
        prefix_tokens=hints.prefix_tokens or "drop",
        features=found.features,
        norm_pooled=found.norm_pooled,
    )
    return join_parts(found.state, head_state, config, described.label_names)


def _read_query2label(state: State, hints: Hints, label_names: tuple[str, ...] | None) -> Weights:
    body = take(state, "backbone.0.")
    head_keys = {k: v for k, v in state.items() if not k.startswith("backbone.")}
    if query2label.POSITIONS in state:
        head_keys[query2label.POSITIONS] = state[query2label.POSITIONS]
    head, head_state = query2label.read_query2label(head_keys, hints)
    if not body:
        return Weights(head_state, head, label_names)
    body, name = _read_query2label_backbone(body)
    stride = CVT_STRIDE if name in CVTS else _STRIDE
    height, width = (stride * count for count in head.grid)
    spec = InputConfig(height=height, width=width, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
    config = NetworkConfig(backbone=name, input=spec, head=head)
    return join_parts(body, head_state, config, label_names)


def _read_query2label_backbone(state: State) -> tuple[State, str]:
    """Returns (tensors under timm's names, backbone)."""
    if "stage0.patch_embed.proj.weight" in state:
        state, candidates = backbones.rename_cvt(state), CVTS
    elif "patch_embed.proj.weight" in state:
        state, candidates = backbones.rename_swin(state), backbones.SWINS
    elif "body.body.conv1.0.weight" in state:
        state, candidates = backbones.rename_tresnet(take(state, "body.")), backbones.TRESNETS
    else:
        state, candidates = take(state, "body."), backbones.RESNETS
    name = backbones.recognise(state, candidates)
    if name is None:
        raise CheckpointError(
            f"the checkpoint's backbone is none of Query2Label's: {', '.join(candidates)}"
        )
    return state, name


def _read_ram(state: State, hints: Hints, label_names: tuple[str, ...] | None) -> Weights:
    body = take(state, ram.BODY)
    head, head_state = ram.read_ram(
        {key: tensor for key, tensor in state.items() if not key.startswith(ram.BODY)}, hints
    )
    if not body:
        return Weights(head_state, head, label_names)
    body = backbones.rename_swin(body)
    name = backbones.recognise(body, backbones.SWINS)
    if name is None:
        raise CheckpointError(
            f"the checkpoint's backbone is none of RAM's: {', '.join(backbones.SWINS)}"
        )
    size = int(name.rpartition("_")[2])
    spec = InputConfig(height=size, width=size, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
    config = NetworkConfig(backbone=name, input=spec, head=head)
    return join_parts(body, head_state, config, label_names)
