"""Photos to tensors: augmented views for training, the served view for evaluation.

In: labelled images and a preparation. Out: data sets of (float [3, H, W], targets [N]).
Next: `features.py`, or `loop.py` where nothing is frozen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data import create_transform, rand_augment_transform, str_to_interp_mode
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from models.config import InputConfig
from models.data import LabelledImage
from models.train.pictures import read_picture
from models.train.recipe import Recipe, RecipeError

Transform = Callable[[Image.Image], Tensor]


class Photos(Dataset[tuple[Tensor, Tensor]]):
    """Photos with their targets, transformed when they are asked for."""

    def __init__(
        self,
        images: tuple[LabelledImage, ...],
        targets: NDArray[np.int64],
        transform: Transform,
    ) -> None:
        """Pairs images with targets.

        Args:
            images: the photos.
            targets: 1, 0 or -1 (unknown), int64 [len(images), N].
            transform: upright RGB picture -> float [3, H, W].
        """
        self.images = images
        self.targets = torch.from_numpy(targets).float()
        self.transform = transform

    def __len__(self) -> int:
        """Number of photos."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns (float [3, H, W], targets float [N]) of one photo.

        Raises:
            DataError: its file is missing or broken.
        """
        return self.transform(read_picture(self.images[index])), self.targets[index]


class Cutout:
    """Covers a box of a picture with one random colour (arXiv 1708.04552)."""

    def __init__(self, share: float) -> None:
        """Takes the box's sides as a share of the picture's, 0..1."""
        self.share = share

    def __call__(self, picture: Image.Image) -> Image.Image:
        """Returns a changed copy; part of the box may lie outside of the picture."""
        width, height = picture.size
        x, y = random.randrange(width), random.randrange(height)
        box = (round(width * self.share), round(height * self.share))
        colour = (random.randrange(256), random.randrange(256), random.randrange(256))
        covered = picture.copy()
        covered.paste(colour, (x - box[0] // 2, y - box[1] // 2, x + box[0] // 2, y + box[1] // 2))
        return covered


def _squashing_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    """Builds the augmentation of ML-Decoder's and Query2Label's authors: no crop, no flip."""
    size = recipe.crop_size
    steps: list[Any] = [transforms.Resize((size, size), str_to_interp_mode(prepared.interpolation))]
    if recipe.cutout:
        steps.append(Cutout(recipe.cutout))
    if recipe.auto_augment:
        steps.append(rand_augment_transform(recipe.auto_augment, {"translate_const": size // 10}))
    steps += [transforms.ToTensor(), transforms.Normalize(prepared.mean, prepared.std)]
    return cast("Transform", transforms.Compose(steps))


def training_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    """Builds the augmentation: timm's crop, flip, RandAugment, colour and erasing, or whole photos.

    Whole photos (`train_resize = "squash"`) get Cutout and RandAugment.

    Raises:
        RecipeError: timm knows no such `auto_augment`.
    """
    try:
        return _build_transform(recipe, prepared)
    except (AssertionError, KeyError, ValueError) as error:  # what timm says to a wrong text
        raise RecipeError(f"recipe: auto_augment: timm knows no {recipe.auto_augment!r}") from error


def _build_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    if recipe.train_resize == "squash":
        return _squashing_transform(recipe, prepared)
    size = recipe.crop_size
    transform = create_transform(
        (3, size, size),
        is_training=True,
        scale=(recipe.crop_scale, 1.0),
        color_jitter=recipe.color_jitter,
        auto_augment=recipe.auto_augment,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        re_prob=recipe.erase,
        re_mode="pixel",
    )
    return cast("Transform", transform)


def evaluation_transform(prepared: InputConfig) -> Transform:
    """Builds the served preparation: the same pixels that the service computes."""
    size: Any = (prepared.height, prepared.width)
    squash = prepared.resize_mode == "squash"
    transform = create_transform(
        (3, *size),
        is_training=False,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        crop_pct=1.0 if squash else prepared.crop_pct,  # what is squashed is never cropped
        crop_mode="squash" if squash else "center",
    )
    return cast("Transform", transform)
