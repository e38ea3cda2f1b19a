"""ImageNet's layout, single-label: `train/<class>/*`, `val/<class>/*` and perhaps `test/`."""

from __future__ import annotations

from pathlib import Path

from models.data.records import LabelledFolder, LabelledImage

_SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
_ENDINGS = {
    ".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"
}  # fmt: skip


def read_classes(path: Path) -> LabelledFolder:
    """Reads the folder; the names are those of the training classes, sorted.

    What is hidden is none of it: tools leave `.ipynb_checkpoints` and the like behind.
    """
    images = [
        LabelledImage(file, split, (label.name,))
        for folder, split in _SPLITS.items()
        if (path / folder).is_dir()
        for label in _list_classes(path / folder)
        for file in sorted(label.iterdir())
        if file.suffix.lower() in _ENDINGS and not file.name.startswith(".")
    ]
    names = tuple(label.name for label in _list_classes(path / "train"))
    return LabelledFolder(path.name, names, tuple(images), single_label=True)


def _list_classes(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
