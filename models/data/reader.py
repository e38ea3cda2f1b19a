"""Recognises the layout of a labelled folder by what lies in it.

In: a folder. Out: a `LabelledFolder`. Next: `train`, `evaluate.py`.
"""

from __future__ import annotations

import csv
from pathlib import Path

from models.data import classes, coco, nus_wide, pairs, simple
from models.data.records import DataError, LabelledFolder, check_labels


def read_labelled_folder(path: Path) -> LabelledFolder:
    """Reads a data set in any of the layouts.

    Raises:
        DataError: the folder has none of them, or its index is damaged or contradicts itself.
    """
    try:
        return check_labels(_read(path))
    except KeyError as error:
        raise DataError(f"the index of {path.name} is damaged: there is no {error}") from error
    except (TypeError, ValueError, AttributeError, OSError, csv.Error) as error:
        raise DataError(f"the index of {path.name} is damaged: {error}") from error


def _read(path: Path) -> LabelledFolder:
    if (path / simple.INDEX).is_file():
        return simple.read_simple(path)
    if (path / coco.INDEX).is_dir():
        return coco.read_coco(path)
    if (path / nus_wide.INDEX).is_file():
        return nus_wide.read_nus_wide(path)
    if pairs.find_pair_files(path):
        return pairs.read_pairs(path)
    if (path / "train").is_dir():
        return classes.read_classes(path)
    raise DataError(
        f"{path} has neither labels.json nor annotations/, nor data.csv, train*.csv or train/"
    )
