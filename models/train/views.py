"""Photos to tensors: augmented views for training, the served view for evaluation.

In: labelled images and a preparation. Out: data sets of (float [3, H, W], targets [N]).
Next: `features.py`, or `loop.py` where nothing is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import Dataset

from models.config import InputConfig
from models.data import LabelledImage
from models.train.recipe import Recipe

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
            targets: 0/1 int64 [len(images), N].
            transform: upright RGB picture -> float [3, H, W].
        """
        self.images = images
        self.targets = torch.from_numpy(targets).float()
        self.transform = transform

    def __len__(self) -> int:
        """Number of photos."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns (float [3, H, W], targets float [N]) of one photo."""
        with Image.open(self.images[index].path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
        return self.transform(picture), self.targets[index]


def training_transform(recipe: Recipe, prepared: InputConfig) -> Transform:
    """Builds timm's training augmentation: crop, flip, RandAugment, colour, erasing."""
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
    transform = create_transform(
        (3, *size),
        is_training=False,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
        crop_pct=prepared.crop_pct,
        crop_mode="squash" if prepared.resize_mode == "squash" else "center",
    )
    return cast("Transform", transform)
