"""Photos as published taggers take them: the steps of `preprocess.json`, and BGR.

A step or value that the service would not follow exactly is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from PIL import ImageColor
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from torch import nn

from models.checkpoints.description import CheckpointError, Hints
from models.config import InputConfig, Interpolation, crop_share

PREPROCESS, TAGS = "preprocess.json", "selected_tags.csv"
_STAGES = ("test", "val")  # of a file; the first that it has is used
_ORDER = re.compile(
    "(convert_rgb )?(pad_to_size )?(resize )?(center_crop )?(maybe_)?to_tensor( normalize)?"
)

_TOLERANCE = 1e-4  # of the largest value

_Side = Annotated[int, Field(ge=1, le=4096)]
_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
_Sides = _Side | Annotated[tuple[_Side, ...], Field(min_length=1, max_length=2)]  # of two: H, W


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Plain(_Step):
    type: Literal["maybe_to_tensor", "to_tensor"]


class _ConvertRgb(_Step):
    type: Literal["convert_rgb"]
    force_background: Literal["white"] = "white"


class _Pad(_Step):
    type: Literal["pad_to_size"]
    size: _Sides
    interpolation: Interpolation = "bilinear"
    background_color: str = "white"


class _Resize(_Step):
    type: Literal["resize"]
    size: _Sides
    interpolation: Interpolation = "bilinear"
    max_size: None = None
    antialias: Literal[True] = True


class _Crop(_Step):
    type: Literal["center_crop"]
    size: _Sides


class _Normalize(_Step):
    type: Literal["normalize"]
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    std: tuple[_Positive, _Positive, _Positive]


_steps = TypeAdapter[list[Any]](
    list[
        Annotated[
            _Plain | _ConvertRgb | _Pad | _Resize | _Crop | _Normalize, Field(discriminator="type")
        ]
    ]
)


def take_photos(
    name: str, spec: InputConfig, photos: Mapping[str, object], hints: Hints
) -> InputConfig:
    """Returns a network's preparation with the fields that `read_preprocess` returned.

    Raises CheckpointError if the network was built for another size.
    """
    own, given = (spec.height, spec.width), (photos.get("height"), photos.get("width"))
    if photos and hints.image_size is None and given != own:
        raise CheckpointError(
            f"{PREPROCESS} has photos of {given[0]} x {given[1]} pixels, {name} takes {own[0]} x "
            f"{own[1]}: give --image-size"
        )
    size = {"height": spec.height, "width": spec.width}
    return InputConfig.model_validate(spec.model_dump() | dict(photos) | size)


@torch.no_grad()
def take_rgb(backbone: nn.Module, spec: InputConfig) -> None:
    """Changes the first convolution of a network that was trained on BGR, so that it takes RGB.

    Raises CheckpointError if there is no convolution of three channels, or more follows from them.
    """
    images = torch.randn(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    expected = backbone(images.flip(1))
    stems = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 3]
    for stem in stems:
        stem.weight.copy_(stem.weight.flip(1))
    deviation = (backbone(images) - expected).abs().max()
    if not stems or not deviation <= _TOLERANCE * expected.abs().max():
        raise CheckpointError("--channels bgr needs a first convolution of three channels")


def read_preprocess(found: Mapping[str, Any], timm: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields of an `InputConfig` that the file's content gives, with the size.

    `timm` is the network's `pretrained_cfg`. Raises CheckpointError for steps that are not
    supported, and for another size than that to which the network is bound.
    """
    stage = next((name for name in _STAGES if name in found), None)
    if stage is None:
        raise CheckpointError(f"{PREPROCESS} has neither {' nor '.join(_STAGES)}")
    try:
        taken = _combine({step.type: step for step in _read_steps(found[stage])})
        bound = timm.get("input_size") if timm.get("fixed_input_size") else None
        size = [3, taken["height"], taken["width"]]
        if isinstance(bound, list | tuple) and list(bound) != size:
            raise ValueError(f"photos of {size}, the network takes {bound} (input_size)")
        return taken
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in (stage, *first["loc"]))
        reason = f"{where}: {first['msg']}"
    except ValueError as error:
        reason = f"{stage}: {error}"
    raise CheckpointError(f"{PREPROCESS} has a preparation that is not supported: {reason}")


def _read_steps(found: object) -> Sequence[Any]:
    steps = _steps.validate_python(found)
    names = " ".join(step.type for step in steps)
    if not _ORDER.fullmatch(names):
        raise ValueError(f"steps in the order {names or 'of none'}")
    return steps


def _combine(steps: Mapping[str, Any]) -> dict[str, object]:
    padded, resized, cropped = (steps.get(n) for n in ("pad_to_size", "resize", "center_crop"))
    scaled = resized or padded
    if scaled is None:
        raise ValueError("no step resizes photos")
    sides = _to_sides(scaled.size)
    end = sides if cropped is None else _to_sides(cropped.size)
    is_free = padded is None and (isinstance(scaled.size, int) or len(scaled.size) == 1)
    if is_free:
        taken: dict[str, object] = _take_crop(sides[0], None if cropped is None else end)
    elif end != sides:
        raise ValueError("center_crop must have the size of the resize before it")
    else:
        taken = {"resize_mode": "squash"} if padded is None else _take_padding(padded)
    normalize = steps.get("normalize")
    return taken | {
        **{"height": end[0], "width": end[1], "interpolation": scaled.interpolation},
        "mean": (0.0, 0.0, 0.0) if normalize is None else normalize.mean,
        "std": (1.0, 1.0, 1.0) if normalize is None else normalize.std,
    }


def _take_padding(step: _Pad) -> dict[str, object]:
    height, width = _to_sides(step.size)
    color = ImageColor.getrgb(step.background_color)
    if height != width:
        raise ValueError(f"pad_to_size must give squares, not {width} x {height}")
    if len(color) != 3:
        raise ValueError(f"background_color {step.background_color} must not be transparent")
    taken = {"resize_mode": "pad", "pad_color": color}
    return taken | {"fit_size": height, "fit_interpolation": step.interpolation}


def _take_crop(shorter: int, size: tuple[int, int] | None) -> dict[str, object]:
    if size is None or not size[0] == size[1] <= shorter:
        raise ValueError("a resize of the shorter side needs a center_crop to a square after it")
    return {"resize_mode": "crop", "crop_pct": crop_share(size[0], shorter)}


def _to_sides(size: int | tuple[int, ...]) -> tuple[int, int]:
    """Returns H and W."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
