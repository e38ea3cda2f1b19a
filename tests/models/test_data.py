"""Labelled folders: both layouts, and damaged ones refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.data import DataError, read_labelled_folder

SIMPLE = {
    "name": "pets",
    "label_names": ["cat", "dog"],
    "images": {
        "b.jpg": {"split": "train", "labels": ["dog", "cat"]},
        "a.jpg": {"split": "train", "labels": []},
        "c.jpg": {"split": "test", "labels": ["cat"], "caption": "ignored"},
    },
}


def write_simple(folder: Path, index: Any = SIMPLE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


def write_coco(folder: Path) -> Path:
    (folder / "annotations").mkdir(parents=True)
    categories = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}]
    for split, images in {"train2017": [7, 3], "val2017": [9]}.items():
        index = {
            "categories": categories,
            "images": [{"id": i, "file_name": f"{i:012d}.jpg"} for i in images],
            "annotations": [
                {"image_id": images[0], "category_id": 18},
                {"image_id": images[0], "category_id": 18},
                {"image_id": images[0], "category_id": 1},
            ],
        }
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(index))
    return folder


def test_simple_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_simple(tmp_path / "x"))
    assert (folder.name, folder.label_names) == ("pets", ("cat", "dog"))
    train = folder.split("train")
    assert [image.path.name for image in train] == ["a.jpg", "b.jpg"]
    np.testing.assert_array_equal(folder.targets(train), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(folder.targets(folder.split("test")), [[1, 0]])


def test_coco_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_coco(tmp_path / "coco"))
    assert folder.label_names == ("person", "dog")
    train = folder.split("train")
    assert [image.path.parent.name for image in train] == ["train2017", "train2017"]
    np.testing.assert_array_equal(folder.targets(train), [[0, 0], [1, 1]])
    assert folder.split("val")[0].path == tmp_path / "coco" / "val2017" / "000000000009.jpg"


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "damaged"),
        ([], "damaged"),
        (SIMPLE | {"images": {"a.jpg": {}}}, "damaged"),
        (SIMPLE | {"label_names": ["cat"]}, "does not name: 'dog'"),
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, index: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_labelled_folder(write_simple(tmp_path / "x", index))
    assert read_labelled_folder(write_simple(tmp_path / "good")).name == "pets"


def test_a_folder_of_neither_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither labels\.json nor annotations"):
        read_labelled_folder(tmp_path)
    assert read_labelled_folder(write_simple(tmp_path)).name == "pets"


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_simple(tmp_path))
    with pytest.raises(DataError, match="no photo in split 'val'"):
        folder.split("val")
    assert folder.split("test")
