"""Recognises the layout of a labelled folder by its files, and reads the two simplest ones."""

import csv
import json
from pathlib import Path

from models.data import coco, nus_wide, pairs
from models.data.records import DataError, LabelledFolder, LabelledImage, check_labels

_INDEX = "labels.json"
_SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
# Of photos to train on. The service reads other formats, and this package imports nothing of it.
_SUFFIXES = {
    ".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"
}  # fmt: skip
# Thumbnails of Synology and QNAP, and the copies that macOS puts into ZIP files.
_THUMBNAIL_FOLDERS = frozenset({"@eaDir", "@__thumb", "__MACOSX"})


def read_labelled_folder(path: Path) -> LabelledFolder:
    """Reads a data set; raises DataError for an unknown layout, and for a damaged index."""
    try:
        return check_labels(_read(path))
    except KeyError as error:
        raise DataError(f"the index of {path.name} is damaged: {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OSError, csv.Error) as error:
        raise DataError(f"the index of {path.name} is damaged: {error}") from error


def _read(path: Path) -> LabelledFolder:
    if (path / _INDEX).is_file():
        return _read_simple(path)
    if (path / coco.INDEX).is_dir():
        return coco.read_coco(path)
    if (path / nus_wide.INDEX).is_file():
        return nus_wide.read_nus_wide(path)
    files, classes = pairs.find_files(path), _list_classes(path / "train")
    if ("train", None) in files.values() or (files and not classes):
        return pairs.read_pairs(path)
    if (path / "train").is_dir():
        return _read_classes(path)
    raise DataError(
        f"{path} has neither labels.json nor annotations/, nor data.csv, train*.csv or train/"
    )


def _read_simple(path: Path) -> LabelledFolder:
    """Reads this project's own layout: `labels.json` and `images/`.

    `labels.json` is {name, label_names, images: {file: {split, labels}}}; an image may also have
    `caption` and `caption_concepts`.
    """
    index = json.loads((path / _INDEX).read_text(encoding="utf-8-sig"))
    images = tuple(
        LabelledImage(
            path / "images" / file,
            entry["split"],
            tuple(entry["labels"]),
            concepts=tuple(_read_text(name) for name in entry.get("caption_concepts", ())),
            caption=_read_text(entry.get("caption") or ""),
        )
        for file, entry in sorted(index["images"].items())
    )
    names = tuple(index["label_names"])
    return LabelledFolder(str(index.get("name", path.name)), names, images)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"captions and concepts must be texts, not {value!r}")
    return value


def _read_classes(path: Path) -> LabelledFolder:
    """Reads ImageNet's layout, single-label: `train/<class>/*`, `val/<class>/*`, maybe `test/`.

    Ignores CSV files that are no pairs of `train`, such as a log; hidden files and folders, such as
    `.ipynb_checkpoints`; and folders of thumbnails.
    """
    images = [
        LabelledImage(file, split, (label.name,))
        for folder, split in _SPLITS.items()
        for label in _list_classes(path / folder)
        for file in sorted(label.glob("[!.]*"))
        if file.suffix.lower() in _SUFFIXES
    ]
    names = tuple(label.name for label in _list_classes(path / "train"))
    return LabelledFolder(path.name, names, tuple(images), single_label=True)


def _list_classes(path: Path) -> list[Path]:
    folders = (child for child in path.glob("[!.]*") if child.is_dir())
    return sorted(folder for folder in folders if folder.name not in _THUMBNAIL_FOLDERS)
