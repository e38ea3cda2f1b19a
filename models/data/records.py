"""What a labelled folder is, whatever its layout on disk.

In: what a reader found. Out: names, photos and targets. Next: `train`, `evaluate.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Target of a label that nobody looked for in a photo."""


class DataError(Exception):
    """A folder of photos cannot be read; the message is one line for a person."""

    def __str__(self) -> str:
        """Returns the message alone: a process that loads photos sends its traceback along."""
        return super().__str__().rstrip().rpartition(f"{DataError.__name__}: ")[2]


@dataclass(frozen=True)
class LabelledImage:
    """One photo.

    Attributes:
        path: image file.
        split: `train`, `val` or `test`.
        labels: names present.
        absent: names known to be absent; only read where the folder is not complete.
        concepts: further names present, from a caption; whether others are is unknown.
        caption: a sentence that says what the photo shows; empty where there is none.
    """

    path: Path
    split: str
    labels: tuple[str, ...]
    absent: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    caption: str = ""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Text embeddings of the labels, and which of them training sees and must not see.

    Attributes:
        embeddings: float32 [N, E], in the order of the label names.
        seen: labels to train.
        unseen: labels kept out of training, to test; others are neither trained nor tested.
    """

    embeddings: NDArray[np.float32]
    seen: tuple[str, ...]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelledFolder:
    """A data set.

    Attributes:
        name: data set name.
        label_names: all N labels, in order.
        images: every photo of every split, in a stable order.
        complete: a label that a photo does not name is absent; otherwise it is unknown.
        single_label: every photo has exactly one label.
        word_vectors: for zero-shot training, where the folder has them.
    """

    name: str
    label_names: tuple[str, ...]
    images: tuple[LabelledImage, ...]
    complete: bool = True
    single_label: bool = False
    word_vectors: WordVectors | None = field(default=None, compare=False)

    @property
    def file_name(self) -> str:
        """The data set's name as a part of a file's name."""
        return self.name.replace("/", "-")

    def split(self, name: str) -> tuple[LabelledImage, ...]:
        """Returns the photos of one split.

        Raises:
            DataError: the split has none.
        """
        chosen = tuple(image for image in self.images if image.split == name)
        if not chosen:
            raise DataError(f"data set {self.name} has no photo in split {name!r}")
        return chosen

    def targets(self, images: tuple[LabelledImage, ...]) -> NDArray[np.int64]:
        """Returns targets int64 [len(images), N]: 1 present, 0 absent, `UNKNOWN`."""
        column = {label: i for i, label in enumerate(self.label_names)}
        rest = 0 if self.complete else UNKNOWN
        targets = np.full((len(images), len(self.label_names)), rest, np.int64)
        for row, image in enumerate(images):
            targets[row, [column[label] for label in image.absent]] = 0
            targets[row, [column[label] for label in image.labels]] = 1
        return targets


def check_labels(folder: LabelledFolder) -> LabelledFolder:
    """Returns the folder if every label of its photos is among its names.

    Raises:
        DataError: one is not, two have one name, one is no text or empty, or there is no photo.
    """
    if not folder.images:
        raise DataError(f"data set {folder.name} has no photo")
    names: tuple[object, ...] = folder.label_names  # files may hold anything
    nameless = [name for name in names if not (isinstance(name, str) and name.strip())]
    if nameless:
        raise DataError(f"data set {folder.name} has a label without a name: {nameless[0]!r}")
    twice = [name for name, count in Counter(folder.label_names).items() if count > 1]
    if twice:
        raise DataError(f"data set {folder.name} has two labels named {twice[0]!r}")
    used = {label for image in folder.images for label in (*image.labels, *image.absent)}
    unknown = used - set(folder.label_names)
    if unknown:
        raise DataError(f"data set {folder.name} uses a label it does not name: {min(unknown)!r}")
    return folder


def check_photos(images: Iterable[LabelledImage]) -> None:
    """Makes sure that the photos are there, before hours are spent on some of them.

    Raises:
        DataError: one is missing.
    """
    for image in images:
        if not image.path.is_file():
            raise DataError(f"the photo {image.path} is missing")


def check_negatives(folder: LabelledFolder) -> None:
    """Makes sure that the training photos tell what they do not show.

    Raises:
        DataError: every label that is known of them is present, so that a network would learn
            to say yes to everything.
    """
    images = folder.split("train")
    if not folder.complete and not any(image.absent for image in images):
        raise DataError(
            f"data set {folder.name} has no row in train that says a label is absent (a "
            "confidence below 0.5): add such rows, or write labels.json, in which a label that "
            "a photo does not name is absent"
        )


def check_single_labels(folder: LabelledFolder) -> None:
    """Makes sure that every photo of training and validation has exactly one label.

    Raises:
        DataError: one has none or several; a softmax would let them compete.
    """
    for image in folder.split("train") + folder.split("val"):
        if len(set(image.labels)) != 1:
            raise DataError(
                f"the photo {image.path.name} has {len(set(image.labels))} labels, and "
                "single_label wants one of each: leave it out"
            )
