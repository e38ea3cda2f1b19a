"""Pairs of image and label in CSV files, with partial labels; Open Images' layout among them.

- `train*.csv`, `val*.csv` (or `validation*.csv`) and `test*.csv`, with a header: `image` or
  `ImageID`, `label` or `LabelName`, optionally `confidence` or `Confidence`. Other CSV files beside
  those of a split are ignored, such as Open Images' `train-images*.csv`.
- A label is present from confidence 0.5 on, absent below it, and unknown without a row. If rows
  contradict each other, the one farther from 0.5 wins: a person's 0 or 1 over a machine's
  fraction. At equal distance the label is unknown.
- `class-descriptions*.csv` (code, name; no header) names coded labels.
- Images are in `images/` or in a folder named as the split; a name without suffix is a `.jpg`.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from models.data.records import DataError, LabelledFolder, LabelledImage

_Range = tuple[float, float]
"""Lowest and highest confidence of one label in one photo."""

_SPLITS = ("train", "val", "test")
_IMAGE, _LABEL = ("image", "ImageID"), ("label", "LabelName")
_PRESENT = 0.5
_CERTAIN: _Range = (1.0, 1.0)


def find_files(path: Path) -> dict[Path, str]:
    """Returns each CSV file that is named after a split, and its split."""
    return {
        file: split
        for file in sorted(path.glob("*.csv"))
        for split in _SPLITS
        if file.name.startswith(split)
    }


def find_missing(file: Path) -> str | None:
    """Returns the names that a lacking column of pairs could have; None if there are both."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        columns = csv.DictReader(lines).fieldnames or ()
    missing = (names for names in (_IMAGE, _LABEL) if not set(names) & set(columns))
    return next((" or ".join(names) for names in missing), None)


def read_pairs(path: Path) -> LabelledFolder:
    """Reads the folder; a damaged file raises KeyError, TypeError or ValueError.

    Raises DataError if there are files of a split, and none of them has the columns of pairs.
    """
    descriptions = _read_descriptions(path)
    known: defaultdict[tuple[str, Path], dict[str, _Range]] = defaultdict(dict)
    for file, split in _find_pair_files(path).items():
        folder = _image_folder(path, file, split)
        for image, label, said in _read_rows(file):
            photo = folder / (image if Path(image).suffix else f"{image}.jpg")
            labels, name = known[split, photo], descriptions.get(label, label)
            labels[name] = _join(labels[name], said) if name in labels else said
    images = [_make_image(*key, labels) for key, labels in sorted(known.items())]
    names = sorted({name for image in images for name in (*image.labels, *image.absent)})
    return LabelledFolder(path.name, tuple(names), tuple(images), complete=False)


def _find_pair_files(path: Path) -> dict[Path, str]:
    files = {file: (split, find_missing(file)) for file, split in find_files(path).items()}
    pairs = {file: split for file, (split, missing) in files.items() if missing is None}
    for file, (split, missing) in files.items():
        if split not in pairs.values():
            raise DataError(f"{file.name} has no column {missing}")
    return pairs


def _read_rows(file: Path) -> Iterator[tuple[str, str, _Range]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        columns = reader.fieldnames or ()
        image, label = (
            next(name for name in names if name in columns) for names in (_IMAGE, _LABEL)
        )
        confidence = next((c for c in ("confidence", "Confidence") if c in columns), None)
        for row in reader:
            said = _CERTAIN if confidence is None else _read_confidence(row[confidence])
            yield row[image], row[label], said


@lru_cache  # millions of rows share the memory of a few values
def _read_confidence(text: str) -> _Range:
    confidence = float(text)
    return confidence, confidence


def _join(one: _Range, other: _Range) -> _Range:
    return min(one[0], other[0]), max(one[1], other[1])


def _make_image(split: str, photo: Path, labels: dict[str, _Range]) -> LabelledImage:
    decided = {name: _decide(said) for name, said in labels.items()}
    present, absent = (
        tuple(name for name, found in decided.items() if found is wanted)
        for wanted in (True, False)
    )
    return LabelledImage(photo, split, present, absent)


def _decide(said: _Range) -> bool | None:
    """Returns whether a label is present; None if it is unknown."""
    low, high = said
    if low >= _PRESENT or high < _PRESENT:
        return low >= _PRESENT
    above, below = high - _PRESENT, _PRESENT - low
    return None if math.isclose(above, below) else above > below


def _read_descriptions(path: Path) -> dict[str, str]:
    names = {}
    for file in sorted(path.glob("class-descriptions*.csv")):
        with file.open(newline="", encoding="utf-8-sig") as lines:
            names.update({row[0]: row[1] for row in csv.reader(lines) if len(row) > 1})
    return names


def _image_folder(path: Path, file: Path, split: str) -> Path:
    name = file.stem.partition("-")[0].partition("_")[0]
    named = (path / name, path / split)
    return next((folder for folder in named if folder.is_dir()), path / "images")
