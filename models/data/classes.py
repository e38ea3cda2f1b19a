"""ImageNet's layout, single-label: `train/<class>/*`, `val/<class>/*` and perhaps `test/`."""

from __future__ import annotations

from pathlib import Path

from models.data.records import LabelledFolder, LabelledImage, check_labels

_SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}


def read_classes(path: Path) -> LabelledFolder:
    """Reads the folder; the names are those of the training classes, sorted.

    Raises:
        DataError: another split has a class that training has not.
    """
    images = [
        LabelledImage(file, split, (label.name,))
        for folder, split in _SPLITS.items()
        if (path / folder).is_dir()
        for label in sorted((path / folder).iterdir())
        if label.is_dir()
        for file in sorted(label.iterdir())
        if file.suffix.lower() in _ENDINGS
    ]
    names = tuple(sorted(p.name for p in (path / "train").iterdir() if p.is_dir()))
    return check_labels(LabelledFolder(path.name, names, tuple(images), single_label=True))
