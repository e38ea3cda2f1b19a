import json
from pathlib import Path

import numpy as np
import pytest

from export import ExportError
from export.sources.labelled_photos import PhotoReader, read_splits, select_photos
from models.data.labelled_folder import read_labelled_folder
from service.images.decode import decode_image
from tests.export.tiny_network import CONTRACT, LABELS, SPLITS, write_folder


def test_splits_are_complete_and_columns_follow_the_model(folder: Path) -> None:
    index = json.loads((folder / "labels.json").read_text())
    assert tuple(index["label_names"]) != LABELS
    splits = read_splits(folder, LABELS, PhotoReader(CONTRACT))
    assert splits.val.dataset == "colours/val"
    for split, count in SPLITS.items():
        photos = getattr(splits, split)
        assert len(photos.paths) == count
        for path, row in zip(photos.paths, photos.targets, strict=True):
            present = {name for name, target in zip(LABELS, row, strict=True) if target}
            assert index["images"][path.name]["split"] == split
            assert present == set(index["images"][path.name]["labels"])


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
    with pytest.raises(ExportError, match="colours/test has no label that some photos"):
        read_splits(folder, LABELS, PhotoReader(CONTRACT))


def test_pixels_are_those_of_the_service_in_order(folder: Path) -> None:
    photos = read_splits(folder, LABELS, PhotoReader(CONTRACT)).val.take(range(3, 20))
    batches = list(photos.read_batches())
    assert [len(batch) for batch in batches] == [8, 8, 1]
    expected = [decode_image(path.read_bytes(), CONTRACT, 10**6).pixels for path in photos.paths]
    assert np.array_equal(np.concatenate(batches), np.stack(expected))


def test_photo_that_cannot_be_used_is_left_out_of_its_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(tmp_path / "colours")
    whole = read_splits(folder, LABELS, PhotoReader(CONTRACT))
    broken = {photos.paths[3] for photos in (whole.train, whole.val, whole.test)}
    for path, is_junk in zip(broken, (True, True, False), strict=True):
        path.unlink()
        if is_junk:
            path.write_bytes(b"junk")
    left_out: set[Path] = set()
    splits = read_splits(folder, LABELS, PhotoReader(CONTRACT, left_out))
    assert left_out == broken
    assert all(f"left out: photo {path} cannot be " in caplog.text for path in broken)
    for before, after in zip(vars(whole).values(), vars(splits).values(), strict=True):
        targets = dict(zip(before.paths, before.targets.tolist(), strict=True))
        kept = {path: targets[path] for path in before.paths if path not in broken}
        assert dict(zip(after.paths, after.targets.tolist(), strict=True)) == kept


def test_calibration_sample_is_filled_up_with_usable_photos(tmp_path: Path) -> None:
    folder = read_labelled_folder(write_folder(tmp_path / "colours"))
    photos = select_photos(folder, "train", LABELS, PhotoReader(CONTRACT)).shuffle()
    first, second, third = photos.paths[:3]
    second.write_bytes(b"junk")
    assert photos.keep_usable(2).paths == (first, third)
