"""COCO's layout: `annotations/instances_<split><year>.json` and one folder of images a split."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from models.data.records import DataError, LabelledFolder, LabelledImage

INDEX = "annotations"
_DIGITS = "0123456789"


def read_coco(path: Path) -> LabelledFolder:
    """Reads the folder; a damaged index raises an error that `labelled_folder.py` catches."""
    names: list[str] = []
    images: list[LabelledImage] = []
    files = sorted((path / INDEX).glob("instances_*.json"))
    years = {file.stem.removeprefix(file.stem.rstrip(_DIGITS)) for file in files}
    if len(years) > 1:  # which share photos, in other splits
        raise DataError(f"{path} has the years {', '.join(sorted(years))}: keep the files of one")
    for file in files:
        folder = file.stem.removeprefix("instances_")
        index: dict[str, Any] = json.loads(file.read_text(encoding="utf-8-sig"))
        category = {c["id"]: c["name"] for c in sorted(index["categories"], key=lambda c: c["id"])}
        names += [name for name in category.values() if name not in names]
        split = folder.rstrip(_DIGITS)
        present: defaultdict[object, dict[str, None]] = defaultdict(dict)
        for annotation in index["annotations"]:
            present[annotation["image_id"]][category[annotation["category_id"]]] = None
        # Annotations of removed photos are common. If no photo has any, the ids differ ("7", 7).
        if present and not any(image["id"] in present for image in index["images"]):
            raise DataError(f"{file.name}: no image_id of its annotations is the id of an image")
        images += [
            LabelledImage(path / folder / image["file_name"], split, tuple(present[image["id"]]))
            for image in sorted(index["images"], key=lambda image: image["id"])
        ]
    if not images:
        raise DataError(f"{path} has no annotations/instances_*.json")
    return LabelledFolder(path.name, tuple(names), tuple(images))
