"""Labelled photos, decoded and resized by the service; targets are in the logits' order."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from export import ExportError
from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledFolder
from service.bundle.card import InputContract
from service.errors import ImageError, escape
from service.images.decode import PixelArray, decode_image
from service.images.raw import load_photo

_MAX_PIXELS = 200_000_000  # width x height; the user's own photos, so only a sanity bound
_MAX_KEPT_BYTES = 2**29  # of decoded pixels: 3,500 photos of 224 x 224
_BATCH_SIZE = 8
_SEED = 0
_CALIBRATION_PHOTOS = 256
MOST_BACKGROUND_PHOTOS = 2_000

logger = logging.getLogger(__name__)


class PhotoReader:
    """Decodes and resizes photos as the service does.

    Keeps pixels in memory, up to `_MAX_KEPT_BYTES`: an export reads a photo several times.
    `left_out` gets the photos that cannot be used.
    """

    def __init__(self, contract: InputContract, left_out: set[Path] | None = None) -> None:
        self.left_out = set() if left_out is None else left_out
        self._contract = contract
        self._kept: dict[Path, PixelArray] = {}

    def read(self, path: Path) -> PixelArray:
        """Returns pixels uint8 [H, W, 3]; raises ExportError for a damaged file."""
        if path in self._kept:
            return self._kept[path]
        try:
            pixels = decode_image(load_photo(path), self._contract, _MAX_PIXELS).pixels
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise ExportError(f"photo {path} cannot be read: {reason}") from error
        except ImageError as error:
            reason = error.describe()
            raise ExportError(f"photo {path} cannot be decoded: {reason}") from error
        if len(self._kept) * pixels.nbytes < _MAX_KEPT_BYTES:
            self._kept[path] = pixels
        return pixels


@dataclass(frozen=True, eq=False)
class LabelledPhotos:
    """One split: n files and their targets, 0 or 1."""

    dataset: str  # data set and split, for example `coco18/val`
    label_names: tuple[str, ...]  # N labels, in the order of the logits
    paths: tuple[Path, ...]
    targets: NDArray[np.int64]  # [n, N]
    reader: PhotoReader

    def read(self) -> PixelArray:
        """Returns pixels uint8 [n, H, W, 3] of the files, in order."""
        return np.stack([self.reader.read(path) for path in self.paths])

    def read_batches(self) -> Iterator[PixelArray]:
        """Yields the same in batches of at most 8."""
        rows = range(len(self.paths))
        for start in rows[::_BATCH_SIZE]:
            yield self.take(rows[start : start + _BATCH_SIZE]).read()

    def take(self, rows: Sequence[int]) -> Self:
        """Returns the photos in these rows."""
        paths = tuple(self.paths[row] for row in rows)
        return replace(self, paths=paths, targets=self.targets[list(rows)])

    def shuffle(self) -> Self:
        """Returns all photos in a random order, the same each time."""
        return self.take(np.random.default_rng(_SEED).permutation(len(self.paths)).tolist())

    def sample(self, count: int) -> Self:
        """Returns at most `count` of the photos, evenly at random."""
        return self.shuffle().take(range(len(self.paths))[:count])

    def keep_usable(self, most: int | None = None) -> Self:
        """Decodes all photos, or the first until `most` are usable; returns the usable ones.

        Logs the others; raises ExportError if no photo is usable.
        """
        rows: list[int] = []
        failures: dict[Path, str] = {}
        for row, path in enumerate(self.paths):
            try:
                self.reader.read(path)
                rows.append(row)
            except ExportError as error:
                failures[path] = str(error)
            if len(rows) == most:
                break
        if not rows:
            first = next(iter(failures.values()), "there is none")
            raise ExportError(f"no photo of {self.dataset} can be used: {first}")
        for path, failure in failures.items():
            if path not in self.reader.left_out:
                logger.warning("left out: %s", escape(failure))
        self.reader.left_out.update(failures)
        return self.take(rows)


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a labelled folder, by purpose."""

    train: LabelledPhotos  # at most 256, at random, to measure the ranges of int8 on
    val: LabelledPhotos  # to choose thresholds and the default precision on
    test: LabelledPhotos  # to measure the manifest's accuracy on
    background: LabelledPhotos  # those of train, at most 2,000


def read_splits(path: Path, label_names: Sequence[str], reader: PhotoReader) -> Splits:
    """Reads the usable photos of a labelled folder.

    Raises ExportError if a split has no usable photo, or if val or test has every label on
    all photos or on none.
    """
    folder = read_labelled_folder(path)
    train, val, test = (
        select_photos(folder, split, label_names, reader) for split in ("train", "val", "test")
    )
    val, test = val.keep_usable(), test.keep_usable()  # first: the reader keeps what is read often
    background = train.shuffle().keep_usable(MOST_BACKGROUND_PHOTOS)
    train = background.take(range(len(background.paths))[:_CALIBRATION_PHOTOS])
    for photos in (val, test):
        if not np.ptp(photos.targets, axis=0).any():
            raise ExportError(
                f"{photos.dataset} has no label that some photos show and others do not"
            )
    return Splits(train, val, test, background)


def find_measured(
    splits: Splits | None, background: LabelledPhotos | None
) -> tuple[LabelledPhotos, LabelledPhotos] | None:
    """Returns photos for the ranges of int8 and others to compare it with fp32 on.

    Without splits they are halves of a background, whose order is random, of at most 256 each.
    """
    if splits is not None:
        return splits.train, splits.val
    if background is None:
        return None
    half = min(len(background.paths) // 2, _CALIBRATION_PHOTOS)
    return background.take(range(half)), background.take(range(half, 2 * half))


def select_photos(
    folder: LabelledFolder, split: str, label_names: Sequence[str], reader: PhotoReader
) -> LabelledPhotos:
    """Returns one split with its targets in the model's order.

    Raises DataError unless the data set and the model have the same labels.
    """
    columns, images = folder.find_columns(label_names), folder.split(split)
    paths, targets = tuple(image.path for image in images), folder.targets(images)[:, columns]
    return LabelledPhotos(f"{folder.name}/{split}", tuple(label_names), paths, targets, reader)


def read_unseen(
    path: Path, split: str, trained: Collection[str], reader: PhotoReader
) -> LabelledPhotos:
    """Reads photos with targets of labels that were not trained.

    Raises ExportError if no photo shows such a label.
    """
    folder = read_labelled_folder(path)
    photos = select_photos(folder, split, folder.label_names, reader)
    names = tuple(name for name in folder.label_names if name not in trained)
    targets = photos.targets[:, [folder.label_names.index(name) for name in names]]
    unseen = replace(photos, label_names=names, targets=targets).keep_usable()
    if not unseen.targets.any():
        raise ExportError(f"{unseen.dataset} shows no label that was not trained")
    return unseen
