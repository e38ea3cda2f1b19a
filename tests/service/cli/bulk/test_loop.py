"""`labels learn`, then `bulk --add-new --xmp`, as a timer runs them."""

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.service.cli.bulk.test_command import TOTALS
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_photo, write_photos
from tests.support.tiny_bundle import tiny_draft, write_learning_bundle

QUESTION = ("--label-set", "mine", "--threshold", "0", "--top-k", "2")


@pytest.fixture
def run(run_open: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command line with a bundle whose registered labels are known by examples alone."""
    bundle = write_learning_bundle(tmp_path, tiny_draft())
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(bundle.path))
    return run_open


@pytest.fixture
def photos(run: Run, tmp_path: Path) -> Path:
    """Twelve photos, which are tagged as `mug` in `tags` and in sidecars."""
    photos = tmp_path / "photos"
    write_photos(photos, 12)
    teach(run, photos, "mug", 0)
    told = "12 tagged, 0 failed, 0 done before, 12 sidecars written\n"
    assert run("bulk", photos, tmp_path / "tags", *QUESTION, "--xmp") == (0, told, "")
    return photos


def teach(run: Run, photos: Path, label: str, seed: int) -> None:
    folder = photos.parent / f"{label}-{seed}"
    (folder / label).mkdir(parents=True)
    (folder / label / "photo").write_bytes(make_photo(seed))
    assert run("labels", "learn", "mine", folder)[0] == 0


def read_tags(results: Path) -> dict[str, set[str]]:
    rows = pq.read_table(results).to_pylist()
    assert len({row["photo"] for row in rows}) == len(rows)
    return {row["photo"]: {label["label"] for label in row["labels"]} for row in rows}


def read_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("[!.]*.*") if path.is_file()}


def test_photos_are_tagged_again_when_labels_learnt_and_a_deleted_tag_stays_deleted(
    run: Run, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results, sidecar = photos.parent / "tags", photos / "05.png.xmp"
    again, before = partial(run, "bulk", photos, results), read_tags(results)
    teach(run, photos, "crow", 4)
    teach(run, photos, "yak", 7)
    reason = "label set mine has learnt since: add --add-new to tag all photos again, or use"
    assert_refused(again, reason, *QUESTION)
    (photos / "00.png").unlink()
    sidecar.write_text(sidecar.read_text().replace("<rdf:li>ml-decoder/mug</rdf:li>", "", 1))
    files = read_files(results) | read_files(photos)
    planned = json.loads(again("--add-new", "--xmp", "--dry-run", "--json")[1])
    assert read_files(results) | read_files(photos) == files

    code, told, _ = again("--add-new", "--xmp", "--json")
    assert "label sets have learnt since; photos to tag again: 11" in caplog.text
    after = read_tags(results)
    changes = [(after[photo] - before[photo], before[photo] - after[photo]) for photo in after]
    came, went = (sum(map(len, each)) for each in zip(*changes, strict=True))
    assert 0 < went < came
    totals = TOTALS | {"tagged": 11, "gone": 1, "came": came, "went": went, "sidecars": 11}
    assert (code, json.loads(told)) == (0, totals | {"rejected": 1})
    assert {key: planned[key] for key in TOTALS} == json.loads(told)
    assert "mug" in after["05.png"]
    assert run("sidecars", photos)[1].splitlines()[5].endswith("; deleted: mug")
    assert again("--add-new")[1] == "0 tagged, 0 failed, 11 done before\n"
    assert run("bulk", photos, photos.parent / "fresh", *QUESTION)[0] == 0
    assert read_tags(photos.parent / "fresh") == after


def test_results_stay_until_all_photos_can_be_read_again(
    run: Run, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results, late = photos.parent / "tags", photos / "late.png"
    add_new = partial(run, "bulk", photos, results, "--add-new", "--xmp", "--part-size", 5)
    teach(run, photos, "yak", 7)
    photos.rename(photos.parent / "mounted")
    photos.mkdir()
    (photos / "11.png").symlink_to(photos.parent / "mounted/11.png")
    assert_refused(add_new, "11 of 12 photos of the results are missing, and would lose their tags")
    (photos / "11.png").unlink()
    photos.rmdir()
    (photos.parent / "mounted").rename(photos)
    late.symlink_to(photos / "none")
    files = read_files(results) | read_files(photos)
    told = "{} tagged, 0 failed, {} done before, 1 not read: run it again for them\n"
    assert add_new()[:2] == (1, told.format(12, 0))
    assert "the results stay as they were until all photos can be read: repair" in caplog.text
    assert add_new()[:2] == (1, told.format(0, 12))  # it continues
    teach(run, photos, "crow", 4)
    assert add_new()[:2] == (1, told.format(12, 0))  # it starts anew
    assert read_files(results) | read_files(photos) == files
    late.unlink()
    late.write_bytes(make_photo(12))
    code, told, _ = add_new()
    assert (code, told.partition("tags")[0]) == (0, "1 tagged, 0 failed, 12 done before, 19 ")
    assert read_tags(results).keys() == {path.name for path in photos.glob("*.png")}
