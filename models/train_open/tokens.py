"""The frozen encoder and the teacher, run once: photos -> tokens and teacher's logits on disk.

In: an encoder, a `Teacher` and photos. Out: `CachedTokens`, memory-mapped arrays of several
views of each photo. Next: `loop.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.backbones.backbone import Backbone
from models.checkpoints.open_head import fingerprint_encoder
from models.config import InputConfig
from models.train.features import one_at_a_time
from models.train.pictures import describe_files
from models.train.views import Photos, Transform, evaluation_transform
from models.train_open.recipe import OpenRecipe
from models.train_open.teacher import Teacher, share_stages

# Small batches keep the early, wide feature maps inside the processor's cache.
_ENCODE_BATCH = 8

Array = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """What encoder and teacher say of n photos in V views.

    Attributes:
        tokens: of the encoder, float16 [V, n, S, C].
        logits: of the teacher, float16 [V, n, P].
    """

    tokens: Array
    logits: Array

    def read(self, view: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (tokens [B, S, C], teacher's logits [B, P]), float32, of some photos."""
        index = rows.numpy()
        tokens, logits = self.tokens[view, index], self.logits[view, index]
        return torch.from_numpy(tokens).float(), torch.from_numpy(logits).float()


class TokenCache:
    """Computes tokens once and keeps them in a folder."""

    def __init__(
        self, encoder: Backbone, teacher: Teacher, folder: Path, device: torch.device, workers: int
    ) -> None:
        """Takes the two networks, which share the leading stages that they have in common.

        Args:
            encoder: what gives the tokens, in eval mode.
            teacher: of the same architecture.
            folder: where the arrays go.
            device: where to compute.
            workers: processes that decode photos.
        """
        self._parts = [
            part.eval().to(device).to(memory_format=torch.channels_last)
            for part in share_stages(encoder, teacher.backbone)
        ]
        self._teacher = teacher
        self._classifier = teacher.classifier.to(device)
        self._key = fingerprint_encoder(encoder) + fingerprint_encoder(teacher.backbone)
        self._folder, self._device, self._workers = folder, device, workers

    def compute(self, name: str, photos: Photos, views: Sequence[Transform]) -> CachedTokens:
        """Returns what is kept of these photos, and computes it where it is not there.

        Args:
            name: tells the arrays of one folder apart; a part of their files' names.
            photos: the photos; their own transform is not used.
            views: one transform a view.

        Raises:
            DataError: a photo is missing or broken.
        """
        text = f"{self._key}{describe_files(photos.images)}{views}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        paths = [self._folder / f"{name}-{digest}.{kind}.npy" for kind in ("tokens", "teacher")]
        self._folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(paths[-1]):  # the last to be written
            if not all(path.exists() for path in paths):
                self._fill(photos, views, paths)
        tokens, logits = (cast("Array", np.load(path, mmap_mode="r")) for path in paths)
        return CachedTokens(tokens, logits)

    def _fill(self, photos: Photos, views: Sequence[Transform], paths: Sequence[Path]) -> None:
        staging = [path.with_suffix(".part") for path in paths]
        arrays: list[Array] = []
        for view, transform in enumerate(views):
            seen = Photos(photos.images, photos.targets.long().numpy(), transform)
            loader = DataLoader(seen, _ENCODE_BATCH, num_workers=self._workers)
            start = 0
            for images, _ in tqdm(loader, desc=f"tokens, view {view + 1} of {len(views)}"):
                found = self._encode(images)
                if not arrays:
                    shapes = [(len(views), len(seen), *values.shape[1:]) for values in found]
                    arrays = [
                        np.lib.format.open_memmap(path, "w+", np.float16, shape)
                        for path, shape in zip(staging, shapes, strict=True)
                    ]
                for array, values in zip(arrays, found, strict=True):
                    array[view, start : start + len(images)] = values
                start += len(images)
        for array, partial, path in zip(arrays, staging, paths, strict=True):
            cast("np.memmap[tuple[int, ...], np.dtype[np.float16]]", array).flush()
            partial.replace(path)

    @torch.inference_mode()
    def _encode(self, images: Tensor) -> list[Array]:
        shared, student, other = self._parts
        batch = images.to(self._device).contiguous(memory_format=torch.channels_last)
        features = shared(batch)
        logits = self._teacher.classify(other(features))
        return [values.half().cpu().numpy() for values in (student(features), logits)]


def training_views(recipe: OpenRecipe, prepared: InputConfig) -> list[Transform]:
    """Returns the views to train on: the served one, and the recipe's number of mild ones."""
    mild = create_transform(
        (3, prepared.height, prepared.width),
        is_training=True,
        scale=(recipe.crop_scale, 1.0),
        color_jitter=recipe.color_jitter,
        auto_augment=None,
        interpolation=prepared.interpolation,
        mean=prepared.mean,
        std=prepared.std,
    )
    return [evaluation_transform(prepared), *[cast("Transform", mild)] * (recipe.views - 1)]
