"""Image processors of CLIP and SigLIP, as `transformers` stores them.

A value that the service would not follow exactly is refused.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from models.checkpoints.description import CheckpointError, first_reason
from models.config import InputConfig, Towers, crop_share

_TYPE = re.compile("(clip|siglip)(ImageProcessor|FeatureExtractor)?(Fast|Pil)?", re.IGNORECASE)
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers
_CLIP = {
    "size": 224,
    "do_center_crop": True,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


class _Processor(BaseModel):
    """The fields that are read, with the defaults of SigLIP's."""

    do_resize: Literal[True] = True
    size: Any = (224, 224)
    resample: int = Field(3, ge=0, lt=len(_FILTERS))
    do_center_crop: bool | None = None
    crop_size: Any = 224
    do_pad: Literal[False] | None = None
    do_rescale: Literal[True] = True
    rescale_factor: float = Field(1 / 255, gt=0.0039215, lt=0.0039216)
    do_normalize: bool = True
    image_mean: Any = (0.5, 0.5, 0.5)
    image_std: Any = (0.5, 0.5, 0.5)


def read_processor(
    content: Mapping[str, Any], kind: Towers, side: int | None, *, crop: bool = False
) -> InputConfig:
    """Reads the content of `preprocessor_config.json`, or of `processor_config.json`.

    Photos have side x side pixels, None: as many as the file says. They are squashed unless `crop`.
    Raises CheckpointError with the field that is not supported.
    """
    try:
        given = content.get("image_processor", content)
        name = given.get("image_processor_type") or given.get("feature_extractor_type") or kind
        if not (family := _TYPE.fullmatch(name)):
            raise ValueError(f"image_processor_type {name}")
        usual = _CLIP if family[1].lower() == "clip" else {}
        return _convert(_Processor.model_validate({**usual, **given}), side, crop=crop)
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the model has a preparation of photos that is not supported: {first_reason(error)}"
        ) from error


def _convert(given: _Processor, side: int | None, *, crop: bool) -> InputConfig:
    (height, width), cuts = _to_sides(given.size), given.do_center_crop
    cut = _to_sides(given.crop_size) if cuts else (height, width)
    side = side or cut[0]
    fits = cuts and height >= side if width is None else (height, width) == (side, side)
    if not fits or cut not in ((side, side), (side, None)):
        sizes = f"size {given.size}, do_center_crop {cuts} and crop_size {given.crop_size}"
        raise ValueError(f"{sizes} for a side of {side}")
    changes: dict[str, Any] = {"interpolation": _FILTERS[given.resample]}
    if given.do_normalize:
        changes |= {"mean": given.image_mean, "std": given.image_std}
    if crop and width is None:
        changes |= {"resize_mode": "crop", "crop_pct": crop_share(side, height)}
    return InputConfig(height=side, width=side, **changes)


def _to_sides(size: object) -> tuple[int, int | None]:
    """Returns H and W, or the shorter side and None."""
    match size:
        case {"height": int(height), "width": int(width), **others} if not others:
            return height, width
        case [int(height), int(width)]:
            return height, width
        case {"shortest_edge": int(edge), **others} if not others:
            return edge, None
        case int(edge):
            return edge, None
    raise ValueError(f"size or crop_size {size!r:.80}")
