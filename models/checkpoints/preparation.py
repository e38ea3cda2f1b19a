"""Photos as published taggers take them: the steps of `preprocess.json`, and BGR.

A step or value that the service would not follow exactly is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from PIL import ImageColor
from torch import nn

from models.checkpoints.description import CheckpointError, first_reason
from models.config import InputConfig, crop_share

PREPROCESS, TAGS = "preprocess.json", "selected_tags.csv"
_STAGES = ("test", "val")  # of a file; the first that it has is used
_ORDER = re.compile(
    "(convert_rgb )?(pad_to_size )?(resize )?(center_crop )?(maybe_)?to_tensor( normalize)?"
)
_KEYS = {
    "convert_rgb": ("force_background",),
    "pad_to_size": ("size", "interpolation", "background_color"),
    "resize": ("size", "interpolation", "max_size", "antialias"),
    "center_crop": ("size",),
    "normalize": ("mean", "std"),
}
_FIXED = {"force_background": "white", "max_size": None, "antialias": True}

_TOLERANCE = 1e-4  # of the largest value


@torch.no_grad()
def take_rgb(backbone: nn.Module, spec: InputConfig) -> None:
    """Makes the first convolution of a BGR network take RGB, or raises CheckpointError."""
    images = torch.randn(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    expected = backbone(images.flip(1))
    stems = [m for m in backbone.modules() if isinstance(m, nn.Conv2d) and m.in_channels == 3]
    for stem in stems:
        stem.weight.copy_(stem.weight.flip(1))
    deviation = (backbone(images) - expected).abs().max()
    if not stems or not deviation <= _TOLERANCE * expected.abs().max():
        raise CheckpointError("--channels bgr needs a first convolution of three channels")


def read_preprocess(content: Mapping[str, Any]) -> InputConfig:
    """Reads the file's content; raises CheckpointError for steps that are not supported."""
    stage = next((name for name in _STAGES if name in content), None)
    if stage is None:
        raise CheckpointError(f"{PREPROCESS} has neither {' nor '.join(_STAGES)}")
    try:
        return InputConfig.model_validate(_combine(_read_steps(content[stage])))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = f"{stage}: {first_reason(error)}"
        raise CheckpointError(
            f"{PREPROCESS} has a preparation that is not supported: {reason}"
        ) from error


def _read_steps(steps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = " ".join(step["type"] for step in steps)
    if not _ORDER.fullmatch(names):
        raise ValueError(f"steps in the order {names or 'of none':.200}")
    for step in steps:
        for key, value in step.items():
            known = ("type", *_KEYS.get(step["type"], ()))
            if key not in known or value != _FIXED.get(key, value):
                raise ValueError(f"{step['type']} with {key} {value!r:.80}")
    return {step["type"]: step for step in steps}


def _combine(steps: Mapping[str, dict[str, Any]]) -> dict[str, object]:
    padded = steps.get("pad_to_size")
    scaled = steps.get("resize", padded)
    if scaled is None:
        raise ValueError("no step resizes photos")
    sides = _to_sides(scaled["size"])
    height, width = _to_sides(steps.get("center_crop", scaled)["size"])
    interpolation = scaled.get("interpolation", "bilinear")
    taken = {"height": height, "width": width, "interpolation": interpolation}
    if "normalize" in steps:
        taken |= {key: steps["normalize"][key] for key in ("mean", "std")}
    if padded is None and scaled["size"] in (sides[0], [sides[0]]):  # the shorter side
        if "center_crop" not in steps or not 0 < height == width <= sides[0]:
            raise ValueError("a resize of the shorter side needs a center_crop to a square")
        return taken | {"resize_mode": "crop", "crop_pct": crop_share(height, sides[0])}
    if (height, width) != sides:
        raise ValueError("center_crop must have the size of the resize before it")
    return taken if padded is None else taken | _take_padding(padded)


def _take_padding(step: Mapping[str, Any]) -> dict[str, object]:
    height, width = _to_sides(step["size"])
    if height != width:
        raise ValueError(f"pad_to_size must give squares, not {width} x {height}")
    return {
        "resize_mode": "pad",
        "pad_color": ImageColor.getrgb(str(step.get("background_color", "white"))),
        "fit_size": height,
        "fit_interpolation": step.get("interpolation", "bilinear"),
    }


def _to_sides(size: object) -> tuple[Any, Any]:
    """Returns H and W."""
    sides = size if isinstance(size, list) else [size]
    height, width = sides * 2 if len(sides) == 1 else sides
    return height, width
