import json
from pathlib import Path

import numpy as np
import pytest

from export.sources.photos import UnusablePhotosError, read_batches, read_pixels, read_splits
from models.data import DataError
from service.bundle.card import InputContract
from service.images.decode import decode_image
from tests.export.tiny_network import LABELS, SPLITS, write_folder

CONTRACT = InputContract(height=32, width=48, resize_mode="squash", interpolation="bilinear")


def test_splits_are_complete_and_columns_follow_the_model(folder: Path) -> None:
    index = json.loads((folder / "labels.json").read_text())
    assert tuple(index["label_names"]) != LABELS
    splits = read_splits(folder, LABELS)
    assert splits.val.dataset == "colours/val"
    for split, count in SPLITS.items():
        photos = getattr(splits, split)
        assert len(photos.paths) == count
        for path, row in zip(photos.paths, photos.targets, strict=True):
            present = {name for name, target in zip(LABELS, row, strict=True) if target}
            assert index["images"][path.name]["split"] == split
            assert present == set(index["images"][path.name]["labels"])


def test_folder_with_other_labels_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(UnusablePhotosError, match="'teal' is in one only"):
        read_splits(folder, (*LABELS, "teal"))


def test_folder_without_a_test_split_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "colours")
    index = json.loads((folder / "labels.json").read_text())
    kept = {file: entry for file, entry in index["images"].items() if entry["split"] != "test"}
    (folder / "labels.json").write_text(json.dumps({**index, "images": kept}))
    with pytest.raises(DataError, match="'test'"):
        read_splits(folder, LABELS)


@pytest.mark.parametrize("labels", [[], ["red", "green", "blue"]])
def test_split_is_refused_when_no_label_differs_between_photos(
    tmp_path: Path, labels: list[str]
) -> None:
    folder = write_folder(tmp_path / "colours")
    index = json.loads((folder / "labels.json").read_text())
    for image in index["images"].values():
        if image["split"] == "test":
            image["labels"] = labels
    (folder / "labels.json").write_text(json.dumps(index))
    with pytest.raises(UnusablePhotosError, match="colours/test has no label that some photos"):
        read_splits(folder, LABELS)


def test_pixels_are_those_of_the_service_in_order(folder: Path) -> None:
    paths = read_splits(folder, LABELS).val.paths[:5]
    batches = list(read_batches(paths, CONTRACT, 2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    expected = [decode_image(path.read_bytes(), CONTRACT, 10**6).pixels for path in paths]
    assert np.array_equal(np.concatenate(batches), np.stack(expected))


def test_sample_is_the_same_each_time_and_has_no_photo_twice(folder: Path) -> None:
    photos = read_splits(folder, LABELS).train
    assert photos.sample(9) == photos.sample(9)
    assert len(set(photos.sample(9))) == 9
    assert set(photos.sample(10**6)) == set(photos.paths)


def test_damaged_or_missing_photo_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    with pytest.raises(UnusablePhotosError, match=r"broken\.png cannot be decoded"):
        read_pixels([broken], CONTRACT)
    with pytest.raises(UnusablePhotosError, match=r"gone\.png cannot be read"):
        read_pixels([tmp_path / "gone.png"], CONTRACT)
