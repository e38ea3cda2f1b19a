"""Labelled photos, decoded and resized by the service; targets are in the logits' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export import ExportError
from models.data import LabelledFolder, read_labelled_folder
from service.bundle.card import InputContract
from service.errors import ImageError
from service.images.decode import PixelArray, decode_image

_MAX_PIXELS = 200_000_000  # width x height; the user's own photos, so only a sanity bound
_SEED = 0


class UnusablePhotosError(ExportError):
    """Labelled photos cannot be read or do not fit the model."""


@dataclass(frozen=True, eq=False)
class LabelledPhotos:
    """One split: n files and their targets, 0 or 1 (-1 if unknown and allowed)."""

    dataset: str  # data set and split, for example `coco18/val`
    label_names: tuple[str, ...]  # N labels, in the order of the logits
    paths: tuple[Path, ...]
    targets: NDArray[np.int64]  # [n, N]

    def sample(self, count: int) -> tuple[Path, ...]:
        """Returns at most `count` of the files, evenly at random with a fixed seed."""
        chosen = np.random.default_rng(_SEED).permutation(len(self.paths))[:count]
        return tuple(self.paths[i] for i in chosen)


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a labelled folder, by purpose."""

    train: LabelledPhotos  # to measure the ranges of int8 on
    val: LabelledPhotos  # to choose thresholds and the default precision on
    test: LabelledPhotos  # to measure the manifest's accuracy on


def read_splits(path: Path, label_names: Sequence[str]) -> Splits:
    """Reads a labelled folder.

    Raises UnusablePhotosError if val or test has every label on all photos or on none.
    """
    folder = read_labelled_folder(path)
    splits = Splits(
        *(select_photos(folder, split, label_names) for split in ("train", "val", "test"))
    )
    for photos in (splits.val, splits.test):
        if not np.ptp(photos.targets, axis=0).any():
            raise UnusablePhotosError(
                f"{photos.dataset} has no label that some photos show and others do not"
            )
    return splits


def select_photos(
    folder: LabelledFolder, split: str, label_names: Sequence[str], *, partial: bool = False
) -> LabelledPhotos:
    """Returns one split with its targets in the model's order; `partial` allows unknown ones (-1).

    Raises UnusablePhotosError unless the data set and the model have the same labels.
    """
    missing = sorted(set(label_names) ^ set(folder.label_names))
    if missing:
        raise UnusablePhotosError(
            f"data set {folder.name} and the model do not have the same labels: "
            f"{missing[0]!r} is in one only"
        )
    if not folder.complete and not partial:
        raise UnusablePhotosError(
            f"data set {folder.name} does not say of every label whether it is absent"
        )
    images = folder.split(split)
    columns = [folder.label_names.index(name) for name in label_names]
    return LabelledPhotos(
        dataset=f"{folder.name}/{split}",
        label_names=tuple(label_names),
        paths=tuple(image.path for image in images),
        targets=folder.targets(images)[:, columns],
    )


def read_batches(
    paths: Sequence[Path], contract: InputContract, batch_size: int
) -> Iterator[PixelArray]:
    """Yields pixels uint8 [<= batch_size, H, W, 3] of the files, in order."""
    for start in range(0, len(paths), batch_size):
        yield read_pixels(paths[start : start + batch_size], contract)


def read_pixels(paths: Sequence[Path], contract: InputContract) -> PixelArray:
    """Returns pixels uint8 [n, H, W, 3]; raises UnusablePhotosError for a damaged file."""
    return np.stack([_read_photo(path, contract) for path in paths])


def _read_photo(path: Path, contract: InputContract) -> PixelArray:
    try:
        return decode_image(path.read_bytes(), contract, _MAX_PIXELS).pixels
    except OSError as error:
        raise UnusablePhotosError(f"photo {path.name} cannot be read") from error
    except ImageError as error:
        raise UnusablePhotosError(f"photo {path.name} cannot be decoded") from error
