"""COCO's layout: `annotations/instances_<split><year>.json` and one folder of images a split."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from models.data.records import DataError, LabelledFolder, LabelledImage

INDEX = "annotations"


def read_coco(path: Path) -> LabelledFolder:
    """Reads the folder; damaged indices raise KeyError, TypeError, ValueError or AttributeError.

    Raises:
        DataError: there is no index.
    """
    names: list[str] = []
    images: list[LabelledImage] = []
    for file in sorted((path / INDEX).glob("instances_*.json")):
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
