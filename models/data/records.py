"""A labelled folder, independent of its layout on disk: names, photos and targets."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.commands import RequestError

UNKNOWN = -1  # target of a label that a photo may or may not have


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
    absent: tuple[str, ...] = ()  # known to be absent; ignored if the folder is complete
    concepts: tuple[str, ...] = ()  # present too, from a caption; other concepts are unknown
    caption: str = ""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Text embeddings of the labels; those neither seen nor unseen are not used."""

    embeddings: NDArray[np.float32]  # [N, E], in the order of the label names
    seen: tuple[str, ...]  # labels to train on
    unseen: tuple[str, ...] = ()  # labels to test on


@dataclass(frozen=True)
class LabelledFolder:
    """A data set."""

    name: str
    label_names: tuple[str, ...]  # all N labels, in order
    images: tuple[LabelledImage, ...]  # of all splits, in a stable order
    complete: bool = True  # labels that a photo does not name are absent, otherwise unknown
    single_label: bool = False  # every photo has exactly one label
    word_vectors: WordVectors | None = field(default=None, compare=False)  # for zero-shot training

    def split(self, name: str) -> tuple[LabelledImage, ...]:
        """Returns the photos of one split; raises DataError if there are none."""
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
    used = {label for image in folder.images for label in (*image.labels, *image.absent)}
    unknown = used - set(folder.label_names)
    if unknown:
        raise DataError(f"data set {folder.name} uses a label it does not name: {min(unknown)!r}")
    return folder


def keep_relevant(folder: LabelledFolder) -> LabelledFolder:
    """Drops photos without a label, as ML-Decoder's authors do.

    With word vectors, a training photo needs a seen label and any other photo an unseen one.
    """
    seen, unseen = set(folder.label_names), set(folder.label_names)
    if (vectors := folder.word_vectors) is not None:
        seen, unseen = set(vectors.seen), set(vectors.unseen or vectors.seen)
    kept = tuple(
        image
        for image in folder.images
        if not (seen if image.split == "train" else unseen).isdisjoint(image.labels)
    )
    return replace(folder, images=kept)


def check_labels_of_photos(folder: LabelledFolder, *, single_label: bool = False) -> None:
    """Raises DataError if no training photo has an absent label: all scores would become 1.

    With `single_label`, photos of training and validation must have exactly one label.
    """
    images = folder.split("train")
    if not folder.complete and not any(image.absent for image in images):
        raise DataError(
            f"data set {folder.name} has no absent label in train: add rows with a confidence "
            "below 0.5, or write labels.json, whose photos lack every label that they do not name"
        )
    for image in images + folder.split("val"):
        if single_label and len(set(image.labels)) != 1:
            raise DataError(
                f"the photo {image.path.name} has {len(set(image.labels))} labels: single_label "
                "needs exactly one"
            )
