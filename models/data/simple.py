"""This project's own layout: `labels.json` and `images/`.

`labels.json` is {name, label_names, images: {file: {split, labels}}}; an image may have
`caption_concepts` too.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.data.records import LabelledFolder, LabelledImage

INDEX = "labels.json"


def read_simple(path: Path) -> LabelledFolder:
    """Reads the folder; damaged indices raise KeyError, TypeError, ValueError or AttributeError."""
    index = json.loads((path / INDEX).read_text(encoding="utf-8-sig"))
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
        raise TypeError(f"{value!r} stands for the text of a caption")
    return value
