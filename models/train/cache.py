"""Outputs of frozen networks, computed once and cached on disk for several views of each photo."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.train.views import Photos, Transform

Array = NDArray[np.float16]
Encode = Callable[[Tensor], Sequence[Tensor]]

# Small batches keep the early, wide feature maps inside the processor's cache.
_BATCH = 8


def cache_outputs(
    encode: Encode, photos: Photos, views: Sequence[Transform], paths: Sequence[Path], workers: int
) -> list[Array]:
    """Returns memory-mapped outputs float16 [views, photos, ...] of `encode`, one for each path.

    `encode` maps images float [B, 3, H, W] on the CPU to outputs [B, ...]; views replace the
    photos' own transform. Paths, `.npy`, must change with all that outputs depend on.
    """
    if not all(path.exists() for path in paths):
        lock = FileLock(paths[-1].with_suffix(".lock"))
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            tqdm.write(f"waiting for another run to fill {paths[-1].name}", file=sys.stderr)
            held = lock.acquire()
        with held:
            if not all(path.exists() for path in paths):
                _fill(encode, photos, views, paths, workers)
        # A run that still waits for the deleted lock finds the files complete.
        Path(lock.lock_file).unlink(missing_ok=True)
    return [np.load(path, mmap_mode="r") for path in paths]


@torch.inference_mode()
def _fill(
    encode: Encode, photos: Photos, views: Sequence[Transform], paths: Sequence[Path], workers: int
) -> None:
    staging = [path.with_suffix(".part") for path in paths]
    arrays: list[Array] = []
    for view, transform in enumerate(views):
        loader = DataLoader(replace(photos, transform=transform), _BATCH, num_workers=workers)
        start = 0
        for images, _ in tqdm(loader, desc=f"frozen features, view {view + 1} of {len(views)}"):
            outputs = [x.half().contiguous().cpu().numpy() for x in encode(images)]
            if not arrays:
                shapes = [(len(views), len(photos), *output.shape[1:]) for output in outputs]
                arrays = [
                    np.lib.format.open_memmap(path, "w+", np.float16, shape)
                    for path, shape in zip(staging, shapes, strict=True)
                ]
            for array, output in zip(arrays, outputs, strict=True):
                array[view, start : start + len(images)] = output
            start += len(images)
    for array, partial, path in zip(arrays, staging, paths, strict=True):
        cast("np.memmap[tuple[int, ...], np.dtype[np.float16]]", array).flush()
        partial.replace(path)
