"""Image processors of CLIP and SigLIP, as `transformers` stores them.

A value that the service would not follow exactly is refused.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.checkpoints.description import CheckpointError
from models.config import InputConfig, Towers, crop_share

_TYPE = re.compile("(CLIP|Siglip)(ImageProcessor|FeatureExtractor)(Fast|Pil)?")
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers
_FACTOR = 1 / 255
# Of fields that a file does not have.
_BOTH = {"resample": 3, "rescale_factor": _FACTOR, "crop_size": 224}
_BOTH |= dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True)
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CLIP": {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "image_mean": (0.48145466, 0.4578275, 0.40821073),
        "image_std": (0.26862954, 0.26130258, 0.27577711),
    },
    "Siglip": {
        "size": {"height": 224, "width": 224},
        "do_center_crop": False,
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
    },
}


def read_processor(
    content: Mapping[str, Any], kind: Towers, side: int | None, *, crop: bool = False
) -> InputConfig:
    """Reads the content of `preprocessor_config.json`, or of `processor_config.json`.

    Photos have side x side pixels, None: as many as the file says. They are squashed unless `crop`.
    Raises CheckpointError with the field that is not supported.
    """
    try:
        given = content.get("image_processor", content)
        return InputConfig.model_validate(_describe(given, kind, side, crop=crop))
    except ValidationError as error:
        reason = "{loc[0]}: {msg}".format(**error.errors()[0])
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error)
    raise CheckpointError(f"the model has a preparation of photos that is not supported: {reason}")


def _describe(
    given: Mapping[str, Any], kind: Towers, side: int | None, *, crop: bool
) -> dict[str, object]:
    name = given.get("image_processor_type") or given.get("feature_extractor_type")
    family = _TYPE.fullmatch(name or {"clip": "CLIP", "siglip": "Siglip"}[kind] + "ImageProcessor")
    if family is None:
        raise ValueError(f"image_processor_type is {name}")
    taken = {**_BOTH, **_DEFAULTS[family[1]], **given}
    height, width = _to_sides(taken["size"])
    cuts, keeps_ratio = taken["do_center_crop"], width is None
    cut = _to_sides(taken["crop_size"]) if cuts else (height, width)
    side = side or cut[0]
    fits = {
        "do_resize": taken["do_resize"],
        "do_rescale": taken["do_rescale"],
        "do_pad": not taken.get("do_pad"),
        "rescale_factor": math.isclose(taken["rescale_factor"], _FACTOR, rel_tol=1e-6),
        "resample": taken["resample"] in range(len(_FILTERS)),
        "size": cuts and height >= side if keeps_ratio else (height, width) == (side, side),
        "crop_size": not cuts or cut in ((side, side), (side, None)),
    }
    if wrong := [key for key, value in fits.items() if not value]:
        raise ValueError(f"{wrong[0]} is {taken[wrong[0]]!r:.80}, for a side of {side}")
    described: dict[str, object] = {
        "height": side,
        "width": side,
        "interpolation": _FILTERS[taken["resample"]],
    }
    if taken["do_normalize"]:
        described |= {"mean": taken["image_mean"], "std": taken["image_std"]}
    if crop and keeps_ratio:
        described |= {"resize_mode": "crop", "crop_pct": crop_share(side, height)}
    return described


def _to_sides(size: object) -> tuple[int, int | None]:
    """Returns H and W, or the shorter side and None."""
    match size:
        case {"height": int(height), "width": int(width), **others} if not others:
            return height, width
        case {"shortest_edge": int(edge), **others} if not others:
            return edge, None
        case [int(height), int(width)]:
            return height, width
        case int(edge):
            return edge, None
    raise ValueError(f"size or crop_size is {size!r:.80}")
