"""Recognises a foreign checkpoint's layout and translates it.

In: what `torch.load` gave. Out: a `ForeignState`. Read here: the authors' ML-Decoder head
alone, on their TResNet and on any timm backbone, in timm's naming too; the authors' Query2Label
head alone and on each of their backbones. Next: `checkpoints.py` builds the network.
"""

from __future__ import annotations

from dataclasses import replace

import timm

from models.backbone import Backbone, input_config
from models.config import InputConfig, NetworkConfig
from models.cvt import CVTS
from models.cvt import STRIDE as CVT_STRIDE
from models.layouts.backbones import (
    RESNETS,
    SWINS,
    TRESNETS,
    recognise,
    rename_cvt,
    rename_swin,
    rename_tresnet,
)
from models.layouts.ml_decoder import MARK as ML_DECODER_MARK
from models.layouts.ml_decoder import read_ml_decoder, split_head
from models.layouts.query2label import MARK as QUERY2LABEL_MARK
from models.layouts.query2label import POSITIONS, read_query2label
from models.layouts.state import CheckpointError, ForeignState, Hints, State, take, unwrap

# What the authors evaluate at; other models of theirs at 448. A file does not tell.
_TRESNET_SIZE = 448
_TRESNET_SIZES = {"tresnet_v2_xl": 640}

_OFFICIAL_TRESNET_MARK = "body.conv1.0.weight"

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_STRIDE = 32
"""Pixels a token, in Query2Label's backbones but CvT."""


def read_foreign(content: object, hints: Hints) -> ForeignState:
    """Translates a foreign checkpoint.

    Args:
        content: what the file held, in one of the wrappings that `unwrap` knows.
        hints: what the file cannot tell.

    Raises:
        CheckpointError: the layout is not one of those above.
    """
    found = unwrap(content)
    if QUERY2LABEL_MARK in found.state:
        return _read_query2label(found.state, hints, found.label_names)
    parts = split_head(found.state)
    if parts is None:
        raise CheckpointError(
            "the checkpoint has no ML-Decoder head and no Query2Label head: there is neither "
            f"{ML_DECODER_MARK} nor {QUERY2LABEL_MARK}"
        )
    if hints.backbone is None and timm.is_model(found.architecture or ""):
        hints = replace(hints, backbone=found.architecture)
    return _read_ml_decoder(*parts, hints, found.label_names)


def read_bare_backbone(content: object) -> State | None:
    """Returns a backbone's tensors under timm's names; None where the file holds a head too.

    Args:
        content: as for `read_foreign`; a classifier of the backbone's own stays among them.

    Raises:
        CheckpointError: there is no dictionary of tensors.
    """
    state = unwrap(content).state
    if QUERY2LABEL_MARK in state or split_head(state) is not None:
        return None
    return rename_tresnet(state) if _OFFICIAL_TRESNET_MARK in state else state


def _read_ml_decoder(
    head_keys: State, body: State, hints: Hints, label_names: tuple[str, ...] | None
) -> ForeignState:
    head, head_state = read_ml_decoder(head_keys, hints.num_heads)
    if not body:
        return ForeignState(head_state, head, None, label_names)
    body, name, prepared = _read_ml_decoder_backbone(body, hints, head.encoder_width)
    config = NetworkConfig(backbone=name, input=prepared, head=head)
    return _join(body, head_state, config, label_names)


def _join(
    body: State, head_state: State, config: NetworkConfig, label_names: tuple[str, ...] | None
) -> ForeignState:
    whole = {f"backbone.body.{key}": tensor for key, tensor in body.items()}
    whole |= {f"head.{key}": tensor for key, tensor in head_state.items()}
    return ForeignState(whole, config.head, config, label_names)


def _read_ml_decoder_backbone(
    state: State, hints: Hints, encoder_width: int
) -> tuple[State, str, InputConfig]:
    """Returns (tensors under timm's names, backbone, preparation of photos)."""
    official = _OFFICIAL_TRESNET_MARK in state
    if official:
        state = rename_tresnet(state)
    if official or "body.conv1.conv.weight" in state:
        name = recognise(state, TRESNETS)
        if name is None:
            raise CheckpointError("the checkpoint's backbone is a TResNet of unknown size")
        size = hints.image_size or _TRESNET_SIZES.get(name, _TRESNET_SIZE)
        return state, name, input_config(name, (size, size))
    if hints.backbone is None:
        fitting = recognise(state, RESNETS)
        example = "" if fitting is None else f", for example {fitting}, whose tensors fit"
        raise CheckpointError(
            f"the file does not name its backbone: give --backbone (a timm name{example})"
        )
    return state, *_hinted_backbone(hints.backbone, hints.image_size, encoder_width)


def _hinted_backbone(name: str, image_size: int | None, width: int) -> tuple[str, InputConfig]:
    size = None if image_size is None else (image_size, image_size)
    try:
        found = Backbone(name, size).width
        prepared = input_config(name, size)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if found != width:
        raise CheckpointError(
            f"{name} gives tokens of width {found}, the file's head takes {width}"
        )
    return name, prepared


def _read_query2label(
    state: State, hints: Hints, label_names: tuple[str, ...] | None
) -> ForeignState:
    body = take(state, "backbone.0.")
    head_keys = {k: v for k, v in state.items() if not k.startswith("backbone.")}
    if POSITIONS in state:
        head_keys[POSITIONS] = state[POSITIONS]
    head, head_state = read_query2label(head_keys, hints)
    if not body:
        return ForeignState(head_state, head, None, label_names)
    body, name = _read_query2label_backbone(body)
    stride = CVT_STRIDE if name in CVTS else _STRIDE
    size = (stride * head.grid[0], stride * head.grid[1])
    if hints.image_size not in (None, *size):
        raise CheckpointError(
            f"the checkpoint's position table is for {size[0]} x {size[1]} pixels"
        )
    prepared = InputConfig(height=size[0], width=size[1], mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
    config = NetworkConfig(backbone=name, input=prepared, head=head)
    return _join(body, head_state, config, label_names)


def _read_query2label_backbone(state: State) -> tuple[State, str]:
    """Returns (tensors under timm's names, backbone)."""
    if "stage0.patch_embed.proj.weight" in state:
        state, candidates = rename_cvt(state), CVTS
    elif "patch_embed.proj.weight" in state:
        state, candidates = rename_swin(state), SWINS
    elif "body.body.conv1.0.weight" in state:
        state, candidates = rename_tresnet(take(state, "body.")), TRESNETS
    else:
        state, candidates = take(state, "body."), RESNETS
    name = recognise(state, candidates)
    if name is None:
        raise CheckpointError(
            f"the checkpoint's backbone is none of Query2Label's: {', '.join(candidates)}"
        )
    return state, name
