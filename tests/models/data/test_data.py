"""Labelled folders in every layout; damaged ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.data.labelled_folder import read_labelled_folder
from models.data.records import DataError, check_labels_of_photos, keep_relevant

COCO, NO_ID = "annotations/instances_train2017.json", r"instances_train2017\.json: no image_id"
VECTORS, NO_TEST = "wordvec_array.pth", r"no label of data\.csv is a test class"

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


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


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


def write_nus_wide(folder: Path) -> Path:
    folder.mkdir()
    (folder / "data.csv").write_text(
        'filepath,label,split_name\na.jpg,"[sky, cat]",train\nb.jpg,[dog],val\n'
    )
    (folder / "benchmark_81_v0.json").write_text(json.dumps({"test class": ["dog"]}))
    vectors = torch.arange(6.0).view(1, 2, 3)  # [1, E, N]: the columns are cat, dog, sky
    torch.save(vectors, folder / "wordvec_array.pth")
    return folder


def replace_text(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def test_simple_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_simple(tmp_path / "x"))
    assert (folder.name, folder.label_names) == ("pets", ("cat", "dog"))
    train = folder.split("train")
    assert [image.path.name for image in train] == ["a.jpg", "b.jpg"]
    np.testing.assert_array_equal(folder.targets(train), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(folder.targets(folder.split("test")), [[1, 0]])
    with pytest.raises(DataError, match="no photo in split 'val'"):
        folder.split("val")
    assert [image.path.name for image in keep_relevant(folder).images] == ["b.jpg", "c.jpg"]


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
    ("write", "file", "damage", "reason"),
    [
        (write_simple, "labels.json", Path.unlink, r"neither labels\.json nor annotations"),
        (write_coco, COCO, replace_text('"person"', '"dog"'), "two labels named 'dog'"),
        (write_coco, COCO, replace_text('"image_id": 7', '"image_id": "7"'), NO_ID),
        # As pandas writes lists: the name has quotes, so it would be trained.
        (write_nus_wide, "data.csv", replace_text("dog", "'dog'"), NO_TEST),
        (write_nus_wide, VECTORS, lambda p: torch.save(torch.zeros(2, 4), p), "each of 3 labels"),
        (write_nus_wide, VECTORS, lambda p: p.write_bytes(b"junk"), "not a plain tensor"),
        (write_nus_wide, VECTORS, Path.unlink, r"no wordvec_array\.pth"),
    ],
)
def test_damaged_layout_is_refused(
    tmp_path: Path,
    write: Callable[[Path], Path],
    file: str,
    damage: Callable[[Path], object],
    reason: str,
) -> None:
    folder = write(tmp_path / "x")
    damage(folder / file)
    with pytest.raises(DataError, match=reason):
        read_labelled_folder(folder)


def test_nus_wide_layout_is_read(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_nus_wide(tmp_path / "nus"))
    assert folder.label_names == ("cat", "dog", "sky")
    assert (folder.word_vectors.seen, folder.word_vectors.unseen) == (("cat", "sky"), ("dog",))
    np.testing.assert_array_equal(folder.word_vectors.embeddings, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(folder.targets(folder.split("train")), [[1, 0, 1]])
    assert folder.split("test")[0].path == folder.split("val")[0].path


def test_nus_wide_labels_in_neither_list_are_neither_seen_nor_unseen(tmp_path: Path) -> None:
    folder = write_nus_wide(tmp_path / "nus")
    classes = {"train class": ["sky", "dog"], "test class": ["dog"]}
    (folder / "benchmark_81_v0.json").write_text(json.dumps(classes))
    with (folder / "data.csv").open("a") as file:
        file.write("c.jpg,[],train\n")
    torch.save(torch.nn.Parameter(torch.ones(2, 3)), folder / "wordvec_array.pth")
    data = read_labelled_folder(folder)
    assert data.label_names == ("cat", "dog", "sky")
    np.testing.assert_array_equal(data.targets(data.split("train")), [[1, 0, 1], [0, 0, 0]])
    # `test class` wins over `train class`.
    assert (data.word_vectors.seen, data.word_vectors.unseen) == (("sky",), ("dog",))
    np.testing.assert_array_equal(data.word_vectors.embeddings, np.ones((3, 2)))


def test_relevant_photos_of_training_have_a_seen_label_and_others_an_unseen_one(
    tmp_path: Path,
) -> None:
    folder = write_nus_wide(tmp_path / "nus")
    with (folder / "data.csv").open("a") as file:
        file.write('c.jpg,[dog],train\nd.jpg,[],val\ne.jpg,"[sky, dog]",val\nf.jpg,[sky],val\n')
    data = keep_relevant(read_labelled_folder(folder))
    for split, kept in {"train": ["a.jpg"], "val": ["b.jpg", "e.jpg"]}.items():
        assert [image.path.name for image in data.split(split)] == kept
    assert data.split("test")[1].path.name == "e.jpg"


def test_class_folders_are_read_as_single_label_without_hidden_files_and_thumbnails(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "train/dog/1.jpg", "train/cat/2.PNG", "train/cat/notes.txt", "val/dog/3.jfif")
    touch(tmp_path, "train/dog/._1.jpg", "train/.ipynb_checkpoints/1.jpg", "train/@eaDir/1.jpg")
    touch(tmp_path, "train/__MACOSX/1.jpg", "train/dog/@eaDir/1.jpg")
    (tmp_path / "training_log.csv").write_text("epoch,loss\n1,0.5\n")
    (tmp_path / "test_predictions.csv").write_text("image,label\n1.jpg,dog\n")
    folder = read_labelled_folder(tmp_path)
    assert (folder.single_label, folder.label_names) == (True, ("cat", "dog"))
    np.testing.assert_array_equal(folder.targets(folder.split("train")), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(folder.targets(folder.split("val")), [[0, 1]])
    touch(tmp_path, "val/cow/4.jpg")
    with pytest.raises(DataError, match="does not name: 'cow'"):
        read_labelled_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("file,tag\na,b\n", r"train\.csv has no column image or ImageID"),
        ("image,label,confidence\na,b,much\n", "damaged"),
        ("image,label\na\nb\n", "a label without a name: None"),
        ("image,label\na,\n", "a label without a name: ''"),
        ('image,label\na,"cat\n' + "b,dog\n" * 30_000, "damaged: field larger than field limit"),
    ],
)
def test_pairs_are_refused_when_a_column_or_value_is_missing(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(DataError, match=reason):
        read_labelled_folder(tmp_path)


def test_csv_files_that_are_no_pairs_are_ignored_beside_others_of_their_split(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.csv").write_text("image,label\na,cat\n")
    (tmp_path / "train-images.csv").write_text("ImageID,OriginalURL\nb,x\n")
    (tmp_path / "training_log.csv").write_bytes(b"epoch,loss\n1,\xff\n")
    assert len(read_labelled_folder(tmp_path).images) == 1
    (tmp_path / "val.csv").write_text("image,tag\na,cat\n")
    with pytest.raises(DataError, match=r"^val\.csv has no column label or LabelName$"):
        read_labelled_folder(tmp_path)
    (tmp_path / "val.csv").write_text("image,label\nb,cat\n")
    assert len(read_labelled_folder(tmp_path).images) == 2


def test_coco_photo_is_refused_when_two_years_split_it_differently(tmp_path: Path) -> None:
    folder = write_coco(tmp_path / "coco")
    write_coco_index(folder, "val2014", [5, 3])
    with pytest.raises(DataError, match="photo 3 is in train2017 and in val2014"):
        read_labelled_folder(folder)
    write_coco_index(folder, "val2014", [5, 9])
    assert len(read_labelled_folder(folder).split("val")) == 3
    write_coco_index(folder, "test2017", [3, 7])  # within a year each split may count anew
    assert len(read_labelled_folder(folder).split("test")) == 2


def test_csv_files_of_one_split_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "train1.csv").write_text("image,label,confidence\nb,dog,1\na,dog,1\n")
    (tmp_path / "train-more.csv").write_text("image,label,confidence\na,cat,0\n")
    (tmp_path / "validation_human.csv").write_text("image,label\nc,cat\n")
    folder = read_labelled_folder(tmp_path)
    train = folder.split("train")
    assert [image.path.name for image in train] == ["a.jpg", "b.jpg"]
    np.testing.assert_array_equal(folder.targets(train), [[0, 1], [-1, 1]])
    assert [image.path.name for image in folder.split("val")] == ["c.jpg"]


@pytest.mark.parametrize(
    "files", [("train-human.csv", "train-machine.csv"), ("train2.csv", "train1.csv")]
)
def test_label_of_a_person_wins_over_a_machines_in_any_order(
    tmp_path: Path, files: tuple[str, str]
) -> None:
    header = "ImageID,Source,LabelName,Confidence\n"
    human, machine = (tmp_path / name for name in files)
    human.write_text(
        f"{header}1,verification,a,0\n1,verification,b,1\n2,verification,a,1\n2,verification,b,0\n"
    )
    machine.write_text(f"{header}1,machine,a,0.7\n1,machine,b,0.2\n2,machine,b,0.9\n")
    folder = read_labelled_folder(tmp_path)
    np.testing.assert_array_equal(folder.targets(folder.images), [[0, 1], [1, 0]])


def test_label_is_unknown_when_equally_sure_rows_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "class-descriptions.csv").write_text("/m/1,cat\n/m/2,cat\n")
    (tmp_path / "train.csv").write_text(
        "image,label,confidence\n"
        "a,/m/1,0\na,/m/2,1\na,/m/1,0.7\n"  # two codes of one name, and no third row decides
        "b,/m/1,0.3\nb,/m/1,0.7\nb,dog,1\n"
        "c,/m/1,0.3\nc,/m/1,0.7\nc,/m/1,1\n"
    )
    folder = read_labelled_folder(tmp_path)
    assert folder.label_names == ("cat", "dog")
    np.testing.assert_array_equal(folder.targets(folder.images), [[-1, -1], [-1, 1], [1, -1]])


def test_photos_are_in_the_folder_of_their_split_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "train2.csv").write_text("image,label\na,cat\nb.png,cat\n")
    for folder in ("images", "train"):
        (tmp_path / folder).mkdir()
        paths = [image.path for image in read_labelled_folder(tmp_path).images]
        assert paths == [tmp_path / folder / name for name in ("a.jpg", "b.png")]


def test_training_photos_without_absent_labels_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("image,label\na,cat\nb,dog\n")
    (tmp_path / "val.csv").write_text("image,label,confidence\nc,cat,0\n")
    with pytest.raises(DataError, match=r"no absent label in train: .* write labels\.json"):
        check_labels_of_photos(read_labelled_folder(tmp_path))
    (tmp_path / "train.csv").write_text("image,label,confidence\na,cat,1\nb,dog,0\n")
    check_labels_of_photos(read_labelled_folder(tmp_path))
