"""Photos to tensors: augmented views for training, the served view for evaluation.

Pictures are flattened as in `service/images/decode.py`: transparent parts white, 16 bits to 8.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from models.commands import RequestError
from models.config import InputConfig
from models.data.records import DataError, LabelledFolder, LabelledImage
from models.train.recipe import Recipe

Transform = Callable[[Image.Image], Tensor]


@dataclass(eq=False)
class Photos(Dataset[tuple[Tensor, Tensor]]):
    """n photos float [3, H, W] with their targets [N]: 1 or 0."""

    images: tuple[LabelledImage, ...]
    targets: Tensor  # float [n, N]
    transform: Transform

    @classmethod
    def of_split(cls, folder: LabelledFolder, split: str, transform: Transform) -> Self:
        """Returns the photos of one split; raises DataError if it is empty or a file is missing."""
        images = folder.split(split)
        missing = next((image.path for image in images if not image.path.is_file()), None)
        if missing is not None:
            raise DataError(f"the photo {missing} is missing")
        return cls(images, torch.from_numpy(folder.targets(images)).float(), transform)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(read_picture(self.images[index])), self.targets[index]


def read_picture(image: LabelledImage) -> Image.Image:
    """Decodes a photo to upright RGB; raises DataError if the file is missing or broken."""
    try:
        with Image.open(image.path) as opened:
            return _flatten(ImageOps.exif_transpose(opened))
    except Exception as error:  # Pillow's readers raise nearly every type
        raise DataError(f"{image.path} is missing or not a readable picture") from error


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion would clip it
        samples = np.asarray(image).astype(np.uint32)
        grey = (samples >> 8).clip(0, 255).astype(np.uint8)
        grey[samples == image.info.get("transparency", -1)] = 255
        image = Image.fromarray(grey)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def describe_files(images: Sequence[LabelledImage]) -> str:
    """Returns each photo's relative path, size and time of change, as a part of a cache key."""
    root = os.path.commonpath([image.path.parent for image in images])
    stats = [image.path.stat() for image in images]
    return "\n".join(
        f"{image.path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}"
        for image, stat in zip(images, stats, strict=True)
    )


def evaluation_transform(prepared: InputConfig) -> Transform:
    """Returns the served preparation: the same pixels that the service computes."""
    size = (prepared.height, prepared.width)
    if prepared.resize_mode == "crop":
        return _create(prepared, size, {"crop_mode": "center", "crop_pct": prepared.crop_pct})
    return _create(prepared, size, {"crop_mode": "squash", "crop_pct": 1.0})


def _create(prepared: InputConfig, size: tuple[int, int], options: dict[str, Any]) -> Transform:
    """Returns timm's transform to (H, W), after the padding if photos are padded."""
    transform: Any = create_transform(
        (3, *size),
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        **options,
    )
    if prepared.resize_mode == "pad":
        transform = transforms.Compose([partial(pad, prepared=prepared), transform])
    return cast("Transform", transform)


def pad(picture: Image.Image, prepared: InputConfig) -> Image.Image:
    """Puts a picture in the middle of a square, after the first fit if there is one."""
    side = prepared.fit_size or max(picture.size)
    if prepared.fit_size is not None:
        width, height = (max(1, round(n * (side / max(picture.size)))) for n in picture.size)
        filters = Image.Resampling[prepared.fit_interpolation.upper()]
        picture = picture.resize((width, height), filters)
    square = Image.new("RGB", (side, side), prepared.pad_color)
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return square


def training_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    """Returns the augmentation: timm's crop, flip, RandAugment and erasing."""
    size = (recipe.crop_size, recipe.crop_size)
    augment: dict[str, Any] = {"auto_augment": recipe.auto_augment, "re_prob": recipe.erase}
    try:
        return crop_transform(prepared, size, recipe.crop_scale, augment | {"color_jitter": 0.0})
    except (AssertionError, KeyError, ValueError) as error:  # timm's, for invalid text
        raise RequestError(
            f"recipe: auto_augment: timm cannot parse {recipe.auto_augment!r}"
        ) from error


def crop_transform(
    prepared: InputConfig, size: tuple[int, int], scale: float, options: dict[str, Any]
) -> Transform:
    """Returns timm's random crops of at least `scale` of a photo, with more options of timm's."""
    crop = {"is_training": True, "re_mode": "pixel", "scale": (scale, 1.0)}
    return _create(prepared, size, crop | options)
