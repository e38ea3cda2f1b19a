"""Photos to tensors: augmented views for training, the served view for evaluation.

Pictures are flattened as `service/images/decode.py` does it: transparent parts become white, and
16-bit samples keep their high byte.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageOps
from timm.data import create_transform, rand_augment_transform, str_to_interp_mode
from timm.data.auto_augment import AugmentOp, RandAugment
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from models.config import InputConfig
from models.data import DataError, LabelledFolder, LabelledImage
from models.train.recipe import OpenRecipe, Recipe, RecipeError

Transform = Callable[[Image.Image], Tensor]

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
# Codes of any value, as data of a picture that is not whole.
_JPEG_CODES = b"\xfe" * 8 + bytes(number**3 % 251 for number in range(4096))

# The operations of the package `randaugment`, but for its cutout of 20 pixels at most.
_RANDAUGMENT = (
    *("Invert", "SharpnessIncreasing", "AutoContrast", "PosterizeOriginal", "ShearX", "ShearY"),
    *("TranslateXRel", "TranslateYRel", "Rotate", "Equalize", "ContrastIncreasing"),
    *("ColorIncreasing", "SolarizeIncreasing", "BrightnessIncreasing"),
)


class Photos(Dataset[tuple[Tensor, Tensor]]):
    """Photos float [3, H, W] with their targets [N]: 1, 0 or -1 (unknown)."""

    def __init__(
        self, images: tuple[LabelledImage, ...], targets: Tensor, transform: Transform
    ) -> None:
        self.images, self.targets, self.transform = images, targets.float(), transform

    @classmethod
    def of_split(cls, folder: LabelledFolder, split: str, transform: Transform) -> Photos:
        """Returns the photos of one split; raises DataError if it is empty."""
        images = folder.split(split)
        return cls(images, torch.from_numpy(folder.targets(images)), transform)

    def seen_through(self, transform: Transform) -> Photos:
        """Returns the same photos with another transform."""
        return Photos(self.images, self.targets, transform)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(read_picture(self.images[index])), self.targets[index]


def read_picture(image: LabelledImage) -> Image.Image:
    """Decodes a photo to upright RGB; raises DataError if the file is missing or broken."""
    try:
        data = image.path.read_bytes()
        try:
            return _decode(data)
        except OSError:
            if not data.startswith(_JPEG_START):
                raise
            return _decode_without_end(data)
    except Exception as error:  # Pillow's readers raise nearly every type
        raise DataError(f"{image.path} is missing or not a readable picture") from error


def _decode_without_end(data: bytes) -> Image.Image:
    """Decodes a JPEG that lacks its end marker; raises ValueError if it lacks more.

    The pixels of a whole picture do not depend on what follows.
    """
    data = data.removesuffix(b"\xff")  # half of the marker
    picture = _decode(data + _JPEG_END)
    if picture.tobytes() != _decode(data + _JPEG_CODES + _JPEG_END).tobytes():
        raise ValueError("the JPEG ends early")
    return picture


def _decode(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as opened:
        return _flatten(ImageOps.exif_transpose(opened))


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
    try:
        stats = [image.path.stat() for image in images]
    except OSError as error:
        raise DataError(f"{error.filename} is missing") from error
    return "\n".join(
        f"{image.path.relative_to(root).as_posix()} {stat.st_size} {stat.st_mtime_ns}"
        for image, stat in zip(images, stats, strict=True)
    )


def evaluation_transform(prepared: InputConfig) -> Transform:
    """Returns the served preparation: the same pixels that the service computes."""
    size: Any = (prepared.height, prepared.width)
    squash = prepared.resize_mode == "squash"
    transform = create_transform(
        (3, *size),
        is_training=False,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        crop_pct=1.0 if squash else prepared.crop_pct,  # squashed photos are never cropped
        crop_mode="squash" if squash else "center",
    )
    return cast("Transform", transform)


def training_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    """Returns the augmentation: timm's crop, flip, RandAugment, colour and erasing.

    `train_resize = "squash"` gives whole photos with Cutout and RandAugment instead, without crop
    and flip, as ML-Decoder's and Query2Label's authors do it.
    """
    size = (recipe.crop_size, recipe.crop_size)
    try:
        if recipe.train_resize == "squash":
            return _squash(recipe, prepared)
        return _crop(recipe, prepared, size, auto_augment=recipe.auto_augment, erase=recipe.erase)
    except (AssertionError, KeyError, ValueError) as error:  # timm's, for invalid text
        raise RecipeError(
            f"recipe: auto_augment: timm cannot parse {recipe.auto_augment!r}"
        ) from error


def open_transforms(recipe: OpenRecipe, prepared: InputConfig) -> list[Transform]:
    """Returns an open head's views: the served one, then `views` - 1 mild ones."""
    mild = _crop(recipe, prepared, (prepared.height, prepared.width))
    return [evaluation_transform(prepared), *[mild] * (recipe.views - 1)]


def _crop(
    recipe: Recipe | OpenRecipe,
    prepared: InputConfig,
    size: tuple[int, int],
    *,
    auto_augment: str | None = None,
    erase: float = 0.0,
) -> Transform:
    transform = create_transform(
        (3, *size),
        is_training=True,
        scale=(recipe.crop_scale, 1.0),
        color_jitter=recipe.color_jitter,
        auto_augment=auto_augment,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        re_prob=erase,
        re_mode="pixel",
    )
    return cast("Transform", transform)


def _squash(recipe: Recipe, prepared: InputConfig) -> Transform:
    size = recipe.crop_size
    steps: list[Any] = [transforms.Resize((size, size), str_to_interp_mode(prepared.interpolation))]
    if recipe.cutout:
        steps.append(Cutout(recipe.cutout))
    if recipe.auto_augment:
        steps.append(_read_policy(recipe.auto_augment, size))
    steps += [transforms.ToTensor(), transforms.Normalize(prepared.mean, prepared.std)]
    return cast("Transform", transforms.Compose(steps))


def _read_policy(text: str, size: int) -> RandAugment:
    if text != "randaugment":
        return cast("RandAugment", rand_augment_transform(text, {"translate_const": size // 10}))
    # Its magnitudes are 1 to 9 of 9, timm's are of 10.
    operations = [
        AugmentOp(name, 0.5, magnitude * 10 / 9, {"translate_pct": 150 / 331})
        for name in _RANDAUGMENT
        for magnitude in range(1, 10)
    ]
    return RandAugment(operations, num_layers=2)


class Cutout:
    """Covers a box of a picture with one random colour (arXiv 1708.04552).

    Its sides are a share of the picture's; part of it may lie outside the picture.
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, picture: Image.Image) -> Image.Image:
        """Returns a changed copy."""
        width, height = picture.size
        x, y = random.randrange(width), random.randrange(height)
        box = (round(width * self.share), round(height * self.share))
        colour = (random.randrange(256), random.randrange(256), random.randrange(256))
        covered = picture.copy()
        covered.paste(colour, (x - box[0] // 2, y - box[1] // 2, x + box[0] // 2, y + box[1] // 2))
        return covered
