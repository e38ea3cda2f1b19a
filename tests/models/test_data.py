"""Labelled folders: both layouts, and damaged ones refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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


def write_nus_wide(folder: Path) -> Path:
    folder.mkdir()
    (folder / "data.csv").write_text(
        'filepath,label,split_name\na.jpg,"[sky, cat]",train\nb.jpg,[dog],val\n'
    )
    (folder / "benchmark_81_v0.json").write_text(json.dumps({"test class": ["dog"]}))
    vectors = torch.arange(6.0).view(1, 2, 3)  # [1, E, N]: the columns are cat, dog, sky
    torch.save(vectors, folder / "wordvec_array.pth")
    return folder


def test_nus_wide_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_nus_wide(tmp_path / "nus"))
    assert folder.label_names == ("cat", "dog", "sky")
    assert folder.word_vectors is not None
    assert folder.word_vectors.unseen == ("dog",)
    np.testing.assert_array_equal(folder.word_vectors.embeddings, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(folder.targets(folder.split("train")), [[1, 0, 1]])
    assert folder.split("test")[0].path == folder.split("val")[0].path


def test_nus_wide_without_its_word_vectors_is_refused(tmp_path: Path) -> None:
    folder = write_nus_wide(tmp_path / "nus")
    good = (folder / "wordvec_array.pth").read_bytes()
    torch.save(torch.zeros(2, 4), folder / "wordvec_array.pth")
    with pytest.raises(DataError, match="each of 3 labels"):
        read_labelled_folder(folder)
    (folder / "wordvec_array.pth").write_bytes(b"junk")
    with pytest.raises(DataError, match="no plain tensor"):
        read_labelled_folder(folder)
    (folder / "wordvec_array.pth").unlink()
    with pytest.raises(DataError, match=r"no wordvec_array\.pth"):
        read_labelled_folder(folder)
    (folder / "wordvec_array.pth").write_bytes(good)
    assert read_labelled_folder(folder)


def test_a_folder_a_class_is_read_as_single_label(tmp_path: Path) -> None:
    for name in ("train/dog/1.jpg", "train/cat/2.PNG", "train/cat/notes.txt", "val/dog/3.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = read_labelled_folder(tmp_path)
    assert (folder.single_label, folder.label_names) == (True, ("cat", "dog"))
    np.testing.assert_array_equal(folder.targets(folder.split("train")), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(folder.targets(folder.split("val")), [[0, 1]])
    (tmp_path / "val" / "cow").mkdir()
    (tmp_path / "val" / "cow" / "4.jpg").touch()
    with pytest.raises(DataError, match="does not name: 'cow'"):
        read_labelled_folder(tmp_path)


def test_pairs_without_the_wanted_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("file,tag\na,b\n")
    with pytest.raises(DataError, match=r"train\.csv has no column image or ImageID"):
        read_labelled_folder(tmp_path)
    (tmp_path / "train.csv").write_text("image,label,confidence\na,b,much\n")
    with pytest.raises(DataError, match="damaged"):
        read_labelled_folder(tmp_path)
    (tmp_path / "train.csv").write_text("image,label,confidence\na,b,0.7\n")
    assert read_labelled_folder(tmp_path).split("train")[0].labels == ("b",)
