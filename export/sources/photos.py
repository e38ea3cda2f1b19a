"""Labelled photos, decoded and resized by the service; targets are in the logits' order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export import ExportError
from models.data import LabelledFolder, read_labelled_folder
from service.bundle.card import InputContract
from service.errors import ImageError
from service.images.decode import PixelArray, decode_image
from service.images.folders import read_photo

_MAX_PIXELS = 200_000_000  # width x height; the user's own photos, so only a sanity bound
_SEED = 0
_CALIBRATION_PHOTOS = 256

logger = logging.getLogger(__name__)


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
        return tuple(self.paths[row] for row in _shuffle(self)[:count])


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a labelled folder, by purpose."""

    train: LabelledPhotos  # at most 256, at random, to measure the ranges of int8 on
    val: LabelledPhotos  # to choose thresholds and the default precision on
    test: LabelledPhotos  # to measure the manifest's accuracy on


def read_splits(
    path: Path, label_names: Sequence[str], contract: InputContract, left_out: set[Path]
) -> Splits:
    """Reads a labelled folder; adds the photos that cannot be used to `left_out`.

    Raises UnusablePhotosError if a split has no usable photo, or if val or test has every label on
    all photos or on none.
    """
    folder = read_labelled_folder(path)
    train, val, test = (
        select_photos(folder, split, label_names) for split in ("train", "val", "test")
    )
    splits = Splits(
        keep_usable(train, contract, left_out, sample=_CALIBRATION_PHOTOS),
        keep_usable(val, contract, left_out),
        keep_usable(test, contract, left_out),
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


def keep_usable(
    photos: LabelledPhotos,
    contract: InputContract,
    left_out: set[Path],
    *,
    sample: int | None = None,
) -> LabelledPhotos:
    """Decodes all photos, or at random until `sample` are usable; returns the usable ones.

    Logs the others and adds them to `left_out`; raises UnusablePhotosError if no photo is usable.
    """
    rows: list[int] = []
    failures: dict[Path, str] = {}
    for row in range(len(photos.paths)) if sample is None else _shuffle(photos):
        try:
            _read_pixels(photos.paths[row], contract)
        except UnusablePhotosError as error:
            failures[photos.paths[row]] = str(error)
        else:
            rows.append(row)
        if len(rows) == sample:
            break
    if not rows:
        first = next(iter(failures.values()))
        raise UnusablePhotosError(f"no photo of {photos.dataset} can be used: {first}")
    for path, failure in failures.items():
        if path not in left_out:
            logger.warning("left out: %s", failure)
    left_out.update(failures)
    paths = tuple(photos.paths[row] for row in rows)
    return replace(photos, paths=paths, targets=photos.targets[rows])


def _shuffle(photos: LabelledPhotos) -> list[int]:
    order: list[int] = np.random.default_rng(_SEED).permutation(len(photos.paths)).tolist()
    return order


def read_batches(
    paths: Sequence[Path], contract: InputContract, batch_size: int
) -> Iterator[PixelArray]:
    """Yields pixels uint8 [<= batch_size, H, W, 3] of the files, in order."""
    for start in range(0, len(paths), batch_size):
        yield read_pixels(paths[start : start + batch_size], contract)


def read_pixels(paths: Sequence[Path], contract: InputContract) -> PixelArray:
    """Returns pixels uint8 [n, H, W, 3]; raises UnusablePhotosError for a damaged file."""
    return np.stack([_read_pixels(path, contract) for path in paths])


def _read_pixels(path: Path, contract: InputContract) -> PixelArray:
    try:
        return decode_image(read_photo(path), contract, _MAX_PIXELS).pixels
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise UnusablePhotosError(f"photo {path} cannot be read: {reason}") from error
    except ImageError as error:
        reason = error.describe()
        raise UnusablePhotosError(f"photo {path} cannot be decoded: {reason}") from error
