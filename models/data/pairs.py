"""Pairs of image and label in CSV files, with partial labels; Open Images' layout among them.

- `train*.csv`, `val*.csv` (or `validation*.csv`) and `test*.csv`, with a header: `image` or
  `ImageID`, `label` or `LabelName`, optionally `confidence` or `Confidence`. Other CSV files of a
  split that has such a file are ignored, such as Open Images' `train-images*.csv`.
- A label is present from confidence 0.5 on, absent below it, and unknown without a row. If rows
  contradict each other, the one farther from 0.5 wins: a person's 0 or 1 over a machine's
  fraction. At equal distance the label is unknown.
- `class-descriptions*.csv` (code, name; no header) names coded labels.
- Images are in `images/` or in a folder named as the split; a name without suffix is a `.jpg`.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

from models.data.records import DataError, LabelledFolder, LabelledImage

_Range = tuple[float, float]
"""Lowest and highest confidence of one label in one photo."""

_SPLITS = ("train", "val", "test")
_IMAGE, _LABEL = ("image", "ImageID"), ("label", "LabelName")
_CONFIDENCE = ("confidence", "Confidence")
_PRESENT = 0.5


def find_files(path: Path) -> dict[Path, tuple[str, str | None]]:
    """Returns CSV files named after a split, their split, and the column that they lack, if any."""
    return {
        file: (split, _find_missing(file))
        for file in sorted(path.glob("*.csv"))
        for split in _SPLITS
        if file.name.startswith(split)
    }


def _find_missing(file: Path) -> str | None:
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        columns = csv.DictReader(lines).fieldnames or ()
    return next((" or ".join(n) for n in (_IMAGE, _LABEL) if not _choose(n, columns)), None)


def read_pairs(path: Path) -> LabelledFolder:
    """Reads the folder; a damaged file raises KeyError, TypeError or ValueError.

    Raises DataError if there are files of a split, and none of them has the columns of pairs.
    """
    files = find_files(path)
    pairs = {file: split for file, (split, missing) in files.items() if missing is None}
    for file, (split, missing) in files.items():
        if split not in pairs.values():
            raise DataError(f"{file.name} has no column {missing}")
    descriptions: dict[str, str] = {}
    for file in sorted(path.glob("class-descriptions*.csv")):
        with file.open(newline="", encoding="utf-8-sig") as lines:
            descriptions.update({row[0]: row[1] for row in csv.reader(lines) if len(row) > 1})
    known: defaultdict[tuple[str, Path], dict[str, _Range]] = defaultdict(dict)
    for file, split in pairs.items():
        name = file.stem.partition("-")[0].partition("_")[0]
        named = (path / name, path / split)
        folder = next((child for child in named if child.is_dir()), path / "images")
        for image, label, confidence in _read_rows(file):
            photo = folder / (image if Path(image).suffix else f"{image}.jpg")
            labels, name = known[split, photo], descriptions.get(label, label)
            low, high = labels.get(name, (confidence, confidence))
            labels[name] = min(low, confidence), max(high, confidence)
    images = [_make_image(*key, labels) for key, labels in sorted(known.items())]
    names = sorted({name for image in images for name in (*image.labels, *image.absent)})
    return LabelledFolder(path.name, tuple(names), tuple(images), complete=False)


def _choose(names: tuple[str, ...], columns: Collection[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _read_rows(file: Path) -> Iterator[tuple[str, str, float]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        kinds = (_IMAGE, _LABEL, _CONFIDENCE)
        image, label, confidence = (_choose(names, reader.fieldnames or ()) for names in kinds)
        for row in reader:
            yield row[image], row[label], _read_float(row[confidence]) if confidence else 1.0


_read_float = lru_cache(float)  # millions of rows share the memory of a few values


def _make_image(split: str, photo: Path, labels: dict[str, _Range]) -> LabelledImage:
    decided = {name: _decide(*confidences) for name, confidences in labels.items()}
    present, absent = (
        tuple(name for name, present_or_not in decided.items() if present_or_not is wanted)
        for wanted in (True, False)
    )
    return LabelledImage(photo, split, present, absent)


def _decide(low: float, high: float) -> bool | None:
    """Returns whether a label is present; None if it is unknown."""
    if low >= _PRESENT or high < _PRESENT:
        return low >= _PRESENT
    above, below = high - _PRESENT, _PRESENT - low
    return None if math.isclose(above, below) else above > below
