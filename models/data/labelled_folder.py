"""Recognises the layout of a labelled folder by its files, and reads this project's own."""

import json
from pathlib import Path

from models.data import coco
from models.data.records import DataError, LabelledFolder, LabelledImage, check_labels

_INDEX = "labels.json"


def read_labelled_folder(path: Path) -> LabelledFolder:
    """Reads a data set; raises DataError for an unknown layout, and for a damaged index."""
    try:
        if (path / _INDEX).is_file():
            return check_labels(_read_simple(path))
        if (path / coco.INDEX).is_dir():
            return check_labels(coco.read_coco(path))
        raise DataError(f"{path} has neither {_INDEX} nor {coco.INDEX}/")
    except KeyError as error:
        raise DataError(f"the index of {path.name} is damaged: {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise DataError(f"the index of {path.name} is damaged: {error}") from error


def _read_simple(path: Path) -> LabelledFolder:
    """Reads this project's own layout: `labels.json` and `images/`.

    It is {name, label_names, images: {file: {split, labels, caption?, caption_concepts?}}}.
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
    return LabelledFolder(str(index.get("name", path.name)), tuple(index["label_names"]), images)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"captions and concepts must be texts, not {value!r}")
    return value
