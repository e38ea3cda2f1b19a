"""NUS-WIDE for zero-shot, as ML-Decoder's authors publish it.

- `data.csv`: image, labels as `[a, b]`, split. The authors test on `val`, so it is also `test`.
- `benchmark_81_v0.json`: `test class`, labels kept out of training, and optionally `train class`,
  the trained labels (default: all others). Labels in neither are ignored.
- `wordvec_array.pth`: word vectors [E, N] or [1, E, N], columns in the sorted order of the labels.
"""

import csv
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models.data.records import DataError, LabelledFolder, LabelledImage, WordVectors

INDEX = "data.csv"
_CLASSES = "benchmark_81_v0.json"
_VECTORS = "wordvec_array.pth"


def read_nus_wide(path: Path) -> LabelledFolder:
    """Reads the folder; a damaged index raises an error that `labelled_folder.py` catches."""
    for name in (_CLASSES, _VECTORS):
        if not (path / name).is_file():
            raise DataError(f"{path} has no {name}")
    with (path / INDEX).open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row][1:]
    images = [
        LabelledImage(path / image, split, tuple(filter(None, labels.strip("[]").split(", "))))
        for image, labels, split in rows
    ]
    images += [
        LabelledImage(image.path, "test", image.labels) for image in images if image.split == "val"
    ]
    names = tuple(sorted({label for image in images for label in image.labels}))
    chosen = json.loads((path / _CLASSES).read_text(encoding="utf-8-sig"))
    tested, trained = set(chosen["test class"]), set(chosen.get("train class", names))
    unseen = tuple(name for name in names if name in tested)
    seen = tuple(name for name in names if name in trained - tested)
    if tested and not unseen:
        raise DataError(
            f"no label of {INDEX} is a test class of {_CLASSES}, for example {names[0]!r}"
        )
    vectors = WordVectors(_read_vectors(path / _VECTORS, len(names)), seen, unseen)
    return LabelledFolder(path.name, names, tuple(images), word_vectors=vectors)


def _read_vectors(path: Path, count: int) -> NDArray[np.float32]:
    try:
        array = torch.as_tensor(torch.load(path, map_location="cpu", weights_only=True)).detach()
    except Exception as error:  # torch.load raises many types for damaged bytes
        raise DataError(f"{path.name} is not a plain tensor") from error
    vectors: NDArray[np.float32] = array.float().numpy().squeeze().T  # [N, E]
    if vectors.ndim != 2 or len(vectors) != count:
        raise DataError(f"{path.name} must have one word vector for each of {count} labels")
    return np.ascontiguousarray(vectors)
