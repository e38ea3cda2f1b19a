"""Labelled photos on disk: `read_labelled_folder` reads any of five layouts."""

from models.data.reader import read_labelled_folder
from models.data.records import (
    DataError,
    LabelledFolder,
    LabelledImage,
    check_labels_of_photos,
    check_photos,
    keep_relevant,
)

__all__ = [
    "DataError",
    "LabelledFolder",
    "LabelledImage",
    "check_labels_of_photos",
    "check_photos",
    "keep_relevant",
    "read_labelled_folder",
]
