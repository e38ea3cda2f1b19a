"""Labelled photos on disk, read from either of two layouts.

In: a folder. Out: a `LabelledFolder`: label names and one record an image. Used by
`train`, `evaluate.py` and the export's calibration.

Layouts:
    simple: `labels.json` {name, label_names, images: {file: {split, labels}}}, `images/`; an
        image may have `caption_concepts` too.
    COCO: `annotations/instances_<split>.json` and one folder of images a split.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DataError(Exception):
    """A folder of photos cannot be read; the message is one line for a person."""


@dataclass(frozen=True)
class LabelledImage:
    """One photo.

    Attributes:
        path: image file.
        split: `train`, `val` or `test`.
        labels: names present; every other label of the folder is absent.
        concepts: further names present; whether the others are is unknown.
    """

    path: Path
    split: str
    labels: tuple[str, ...]
    concepts: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelledFolder:
    """A data set.

    Attributes:
        name: data set name.
        label_names: all N labels, in order.
        images: every photo of every split, in a stable order.
    """

    name: str
    label_names: tuple[str, ...]
    images: tuple[LabelledImage, ...]

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
        """Returns 0/1 targets int64 [len(images), N]."""
        column = {label: i for i, label in enumerate(self.label_names)}
        targets = np.zeros((len(images), len(self.label_names)), np.int64)
        for row, image in enumerate(images):
            for label in image.labels:
                targets[row, column[label]] = 1
        return targets


def read_labelled_folder(path: Path) -> LabelledFolder:
    """Reads a data set in either layout.

    Raises:
        DataError: the folder has neither layout, or its index is damaged.
    """
    try:
        if (path / "labels.json").is_file():
            return _read_simple(path)
        if (path / "annotations").is_dir():
            return _read_coco(path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the index of {path.name} is damaged") from error
    raise DataError(f"{path} has neither labels.json nor annotations/")


def _read_simple(path: Path) -> LabelledFolder:
    index = json.loads((path / "labels.json").read_text())
    names = tuple(index["label_names"])
    images = tuple(
        LabelledImage(
            path / "images" / file,
            entry["split"],
            tuple(entry["labels"]),
            tuple(entry.get("caption_concepts", ())),
        )
        for file, entry in sorted(index["images"].items())
    )
    _check_labels(path.name, names, images)
    return LabelledFolder(index.get("name", path.name), names, images)


def _check_labels(name: str, names: tuple[str, ...], images: tuple[LabelledImage, ...]) -> None:
    unknown = {label for image in images for label in image.labels} - set(names)
    if unknown:
        raise DataError(f"data set {name} uses a label it does not name: {min(unknown)!r}")


def _read_coco(path: Path) -> LabelledFolder:
    names: list[str] = []
    images: list[LabelledImage] = []
    for file in sorted((path / "annotations").glob("instances_*.json")):
        folder = file.stem.removeprefix("instances_")
        index: dict[str, Any] = json.loads(file.read_text())
        category = {c["id"]: c["name"] for c in sorted(index["categories"], key=lambda c: c["id"])}
        names += [name for name in category.values() if name not in names]
        present: defaultdict[int, dict[str, None]] = defaultdict(dict)
        for annotation in index["annotations"]:
            present[annotation["image_id"]][category[annotation["category_id"]]] = None
        images += [
            LabelledImage(
                path / folder / image["file_name"],
                folder.rstrip("0123456789"),
                tuple(present[image["id"]]),
            )
            for image in sorted(index["images"], key=lambda image: image["id"])
        ]
    if not images:
        raise DataError(f"{path} has no annotations/instances_*.json")
    return LabelledFolder(path.name, tuple(names), tuple(images))
