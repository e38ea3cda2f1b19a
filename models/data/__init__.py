"""Labelled photos on disk: `read_labelled_folder` recognises the layout of a folder.

In: a folder. Out: a `LabelledFolder`. `records.py` says what that is; each layout has its own
file: `simple.py`, `coco.py`, `nus_wide.py`, `pairs.py` (CSV), `classes.py` (a folder a class).
Used by `train`, `evaluate.py` and the export's calibration.
"""

from models.data.reader import read_labelled_folder
from models.data.records import (
    DataError,
    LabelledFolder,
    LabelledImage,
    check_negatives,
    check_photos,
    check_single_labels,
)

__all__ = [
    "DataError",
    "LabelledFolder",
    "LabelledImage",
    "check_negatives",
    "check_photos",
    "check_single_labels",
    "read_labelled_folder",
]
