"""The frozen part of the backbone, run once: photos -> features kept on disk.

In: a frozen module and a data set. Out: `CachedFeatures`, a memory-mapped array of several
augmented views of each photo. Next: `loop.py`, which trains what comes after it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from models.train.views import Photos

# Small batches keep the early, wide feature maps inside the processor's cache.
_ENCODE_BATCH = 8
_PREFETCHED_BATCHES = 8  # a worker


class CachedFeatures(Dataset[tuple[Tensor, Tensor]]):
    """Features of every photo in one of its cached views.

    Attributes:
        view: which view is read, 0-based; set before each epoch.
    """

    def __init__(self, features: NDArray[np.float16], targets: Tensor) -> None:
        """Wraps an array.

        Args:
            features: float16 [views, photos, ...].
            targets: float [photos, N].
        """
        self.features = features
        self.targets = targets
        self.view = 0

    def __len__(self) -> int:
        """Number of photos."""
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns (features float16 [...], targets float [N]) of one photo."""
        return torch.from_numpy(self.features[self.view, index].copy()), self.targets[index]


@dataclass(frozen=True)
class FrozenPart:
    """The frozen part of a backbone and where it runs.

    Attributes:
        module: images float [B, 3, H, W] -> features [B, ...]; in eval mode.
        device: where `module` is.
        workers: processes that decode photos for it.
    """

    module: nn.Module
    device: torch.device
    workers: int


def cache_features(frozen: FrozenPart, photos: Photos, views: int, path: Path) -> CachedFeatures:
    """Runs a frozen module over several views of each photo, or reuses an earlier run.

    Args:
        frozen: what computes the features.
        photos: the photos; a random transform gives another view each time.
        views: number of passes.
        path: `.npy` file of the features; reused whole if it is there.

    Raises:
        DataError: a photo is missing or broken.
    """
    with one_at_a_time(path):
        if not path.exists():
            staging = path.with_suffix(".part")
            _fill(frozen, photos, views, staging)
            staging.replace(path)
    return CachedFeatures(np.load(path, mmap_mode="r"), photos.targets)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one run fill a file of a cache; others that begin meanwhile wait for what it makes.

    Args:
        path: the file; where it is there, nobody waits.
    """
    if path.exists():
        yield
        return
    lock = FileLock(path.with_suffix(".lock"))
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        tqdm.write(f"waiting for another run, which fills {path.name}", file=sys.stderr)
        held = lock.acquire()
    with held:
        yield
    # Whoever still waits for it finds the file filled.
    Path(lock.lock_file).unlink(missing_ok=True)


def _fill(frozen: FrozenPart, photos: Photos, views: int, path: Path) -> None:
    array: np.memmap[Any, np.dtype[np.float16]] | None = None
    loader = DataLoader(
        photos,
        _ENCODE_BATCH,
        num_workers=frozen.workers,
        prefetch_factor=_PREFETCHED_BATCHES if frozen.workers else None,
    )
    for view in range(views):
        start = 0
        for images, _ in tqdm(loader, desc=f"frozen features, view {view + 1} of {views}"):
            features = _encode(frozen, images)
            if array is None:
                shape = (views, len(photos), *features.shape[1:])
                array = np.lib.format.open_memmap(path, "w+", np.float16, shape)
            array[view, start : start + len(features)] = features
            start += len(features)
    if array is not None:
        array.flush()


@torch.inference_mode()
def _encode(frozen: FrozenPart, images: Tensor) -> NDArray[np.float16]:
    batch = images.to(frozen.device).contiguous(memory_format=torch.channels_last)
    features: NDArray[np.float16] = frozen.module(batch).half().contiguous().cpu().numpy()
    return features
