"""Labelled folders in both layouts; damaged ones are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.data.labelled_folder import read_labelled_folder
from models.data.records import DataError

SIMPLE: dict[str, Any] = {
    "name": "pets",
    "label_names": ["cat", "dog"],
    "images": {
        "b.jpg": {"split": "train", "labels": ["dog", "cat"]},
        "a.jpg": {"split": "train", "labels": []},
        "c.jpg": {"split": "test", "labels": ["cat"], "caption": "ignored"},
    },
}


def with_photo(**fields: Any) -> dict[str, Any]:
    """Returns the index with one more photo."""
    photo = {"split": "train", "labels": ["cat"], **fields}
    return SIMPLE | {"images": SIMPLE["images"] | {"d.jpg": photo}}


def write_simple(folder: Path, index: Any = SIMPLE) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


def write_coco_index(folder: Path, name: str, ids: list[int], labels: tuple[int, ...] = ()) -> None:
    """Writes the index of one folder of photos; the first one has the labels."""
    index = {
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "images": [{"id": i, "file_name": f"{i:012d}.jpg"} for i in ids],
        "annotations": [{"image_id": ids[0], "category_id": label} for label in labels],
    }
    (folder / "annotations" / f"instances_{name}.json").write_text(json.dumps(index))


def write_coco(folder: Path) -> Path:
    (folder / "annotations").mkdir(parents=True)
    write_coco_index(folder, "train2017", [7, 3], labels=(18, 18, 1))
    write_coco_index(folder, "val2017", [9], labels=(18, 18, 1))
    return folder


def test_simple_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_simple(tmp_path / "x"))
    assert (folder.name, folder.label_names) == ("pets", ("cat", "dog"))
    train = folder.split("train")
    assert [image.path.name for image in train] == ["a.jpg", "b.jpg"]
    np.testing.assert_array_equal(folder.targets(train), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(folder.targets(folder.split("test")), [[1, 0]])
    with pytest.raises(DataError, match="no photo in split 'val'"):
        folder.split("val")
    with pytest.raises(DataError, match=r"neither labels\.json nor annotations"):
        read_labelled_folder(tmp_path)


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
        ({}, "damaged: 'images' is missing"),
        ([], "damaged"),
        (SIMPLE | {"images": {"a.jpg": {}}}, "damaged: 'split' is missing"),
        (SIMPLE | {"label_names": ["cat"]}, "does not name: 'dog'"),
        (SIMPLE | {"label_names": ["cat", "dog", "cat"]}, "two labels named 'cat'"),
        (SIMPLE | {"label_names": ["cat", "dog", 3]}, "a label without a name: 3"),
        (SIMPLE | {"label_names": ["cat", "dog", " "]}, "a label without a name: ' '"),
        (with_photo(caption=3), "must be texts, not 3"),
        (with_photo(caption_concepts=[None]), "must be texts, not None"),
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, index: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_labelled_folder(write_simple(tmp_path / "x", index))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"person"', '"dog"', "two labels named 'dog'"),
        ('"image_id": 7', '"image_id": "7"', r"instances_train2017\.json: no image_id"),
    ],
)
def test_damaged_index_of_coco_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    folder = write_coco(tmp_path / "coco")
    path = folder / "annotations" / "instances_train2017.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=reason):
        read_labelled_folder(folder)


def test_coco_of_two_years_is_refused(tmp_path: Path) -> None:
    folder = write_coco(tmp_path / "coco")
    write_coco_index(folder, "test2017", [3, 7])  # each split may count anew
    assert len(read_labelled_folder(folder).split("test")) == 2
    write_coco_index(folder, "val2014", [5])
    with pytest.raises(DataError, match="years 2014, 2017: keep"):
        read_labelled_folder(folder)
