"""A labelled folder, independent of its layout on disk: names, photos and targets."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.commands import RequestError


class DataError(RequestError):
    """A folder of photos cannot be read."""

    def __str__(self) -> str:
        """Returns the message without the traceback that a worker process puts before it."""
        return super().__str__().rstrip().rpartition(f"{DataError.__name__}: ")[2]


@dataclass(frozen=True)
class LabelledImage:
    """One photo."""

    path: Path
    split: str  # train, val or test
    labels: tuple[str, ...]
    concepts: tuple[str, ...] = ()  # present too, from a caption; other concepts are unknown
    caption: str = ""


@dataclass(frozen=True)
class LabelledFolder:
    """A data set."""

    name: str
    label_names: tuple[str, ...]  # all N labels, in order
    images: tuple[LabelledImage, ...]  # of all splits, in a stable order

    def split(self, name: str) -> tuple[LabelledImage, ...]:
        """Returns the photos of one split; raises DataError if there are none."""
        chosen = tuple(image for image in self.images if image.split == name)
        if not chosen:
            raise DataError(f"data set {self.name} has no photo in split {name!r}")
        return chosen

    def find_columns(self, names: Sequence[str]) -> list[int]:
        """Returns the column of each of a model's labels; raises DataError if it has others."""
        others = sorted(set(names) ^ set(self.label_names))
        if others:
            raise DataError(
                f"data set {self.name} and the model do not have the same labels: "
                f"{others[0]!r} is in one only"
            )
        return [self.label_names.index(name) for name in names]

    def targets(self, images: tuple[LabelledImage, ...]) -> NDArray[np.int64]:
        """Returns targets int64 [len(images), N]: 1 for the labels of a photo, 0 for others."""
        column = {label: i for i, label in enumerate(self.label_names)}
        targets = np.zeros((len(images), len(self.label_names)), np.int64)
        for row, image in enumerate(images):
            targets[row, [column[label] for label in image.labels]] = 1
        return targets


def check_labels(folder: LabelledFolder) -> LabelledFolder:
    """Returns the folder; raises DataError for no photo, and for invalid and unknown labels."""
    if not folder.images:
        raise DataError(f"data set {folder.name} has no photo")
    names: tuple[object, ...] = folder.label_names  # files may hold anything
    nameless = [name for name in names if not (isinstance(name, str) and name.strip())]
    if nameless:
        raise DataError(f"data set {folder.name} has a label without a name: {nameless[0]!r}")
    twice = [name for name, count in Counter(folder.label_names).items() if count > 1]
    if twice:
        raise DataError(f"data set {folder.name} has two labels named {twice[0]!r}")
    used = {label for image in folder.images for label in image.labels}
    unknown = used - set(folder.label_names)
    if unknown:
        raise DataError(f"data set {folder.name} uses a label it does not name: {min(unknown)!r}")
    return folder
