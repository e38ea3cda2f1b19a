"""`ml-decoder bulk` as a command; `test_run` has what it does."""

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.bundle.reader import Bundle
from service.cli.bulk.parts import QUESTION_FILE
from service.cli.bulk.run import Totals
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_photo, write_photos

TOTALS = asdict(Totals())


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(tiny_bundle.path))
    return partial(run, "bulk")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", 3)
    return tmp_path / "photos"


def test_bulk_writes_totals_and_exits_with_1_after_failures(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    assert run(photos, tmp_path / "a") == (0, "3 tagged, 0 failed, 0 done before\n", "")
    for name in ("bad.jpg", "small.jpg"):
        (photos / name).write_bytes(b"junk")
    code, out, err = run(photos, tmp_path / "a", "--exclude-path", "small.*", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out) == TOTALS | {"failed": 1, "skipped": 3, "left_out": 1}
    (photos / "small.jpg").unlink()
    told = "0 tagged, 0 failed, 4 done before (1 of them failed)\n"
    assert run(photos, tmp_path / "a") == (0, told, "")
    told = "0 tagged, 1 failed, 3 done before\n"
    assert run(photos, tmp_path / "a", "--retry-failed")[:2] == (1, told)
    (photos / "bad.jpg").write_bytes(make_photo())
    told = "1 tagged, 0 failed, 3 done before\n"
    assert run(photos, tmp_path / "a", "--retry-failed") == (0, told, "")
    assert len(pq.read_table(tmp_path / "a")) == 4


def test_bulk_names_unread_photos_and_recommends_another_run(
    run: Run, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(photos / "3.png")
    (photos / os.fsdecode(b"caf\xe9.png")).write_bytes(make_photo(3))
    told = "3 tagged, 0 failed, 0 done before, 2 not read: run it again for them\n"
    assert run(photos, tmp_path / "a")[:2] == (1, told)
    assert "3.png was not read: [Errno 22] Not a regular file" in caplog.text
    assert r"caf\xe9.png was not read: its name is not UTF-8: rename the file" in caplog.text


@pytest.mark.parametrize(
    ("missing", "extra", "flags"),
    [("pyarrow", "bulk", ()), ("ray", "ray", ("--ray",)), ("lxml", "bulk", ("--xmp",))],
)
def test_bulk_names_the_extra_of_a_missing_package(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: str, extra: str, flags: tuple[str, ...]
) -> None:
    found = dict.fromkeys(("pyarrow", "lxml", "ray"), object()) | {missing: None}
    monkeypatch.setattr("service.cli.options.find_spec", found.__getitem__)
    reason = f"{missing} is missing: pip install -e '.[{extra}]' in the checkout\n"
    assert run("photos", "out", *flags) == (2, "", f"ml-decoder: {reason}")


def test_bulk_from_reads_the_results_of_embeddings(run: Run, photos: Path, tmp_path: Path) -> None:
    assert run(photos, tmp_path / "a", "--embeddings")[0] == 0
    reason = "--from cannot answer 5 label(s) that need the photos: 'cat', 'dog', 'car', 'tree', "
    again = partial(run, "--from", tmp_path / "a", tmp_path / "b")
    assert_refused(again, reason)
    assert_refused(again, "--from takes no --embeddings, --exclude-path or --ray", "--embeddings")
    assert_refused(run, "b has no embeddings", "--from", tmp_path / "b", tmp_path / "a")


def test_add_new_asks_the_results_question_of_new_photos(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    add_new = partial(run, photos, tmp_path / "a", "--add-new")
    reason = "a has no results: run bulk without --add-new, --from and --photos first"
    assert_refused(add_new, reason)
    question = ("--min-labels", "4", "--exclude", "cat", "--embeddings")
    assert run(photos, tmp_path / "a", *question)[0] == 0
    (photos / "00.png").rename(photos / "new.png")
    assert add_new() == (0, "1 tagged, 0 failed, 2 done before, 1 gone\n", "")
    rows = pq.read_table(tmp_path / "a").to_pylist()
    assert [len(row["labels"]) for row in rows] == [4, 4, 4, 4]
    assert None not in {row["embedding"] and len(row["embedding"]) for row in rows}
    for flags in (question[:2], question[-1:]):
        assert_refused(add_new, "--add-new asks as before: leave out", *flags)


def test_run_continues_with_another_spelling_of_its_photos(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("photos/00.png\nphotos/01.png\n")
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(photos)
    for first, others in (
        (photos, ("../photos/", "../link", ".")),
        ("../photos", (photos, tmp_path / "link")),
        (names, ("../names.txt", "../link/../names.txt")),
    ):
        out = tmp_path / f"tags-{len(others)}-{Path(first).suffix}"
        assert run(first, out, "--top-k", "2")[0] == 0
        begun = (out / QUESTION_FILE).read_text()
        for again in others:
            for flags in (("--top-k", "2"), ("--add-new",)):
                assert run(again, out, *flags)[1].startswith("0 tagged, 0 failed, ")
        assert (out / QUESTION_FILE).read_text() == begun
    # The names in a list are relative to its folder, so a link elsewhere is another list.
    (photos / "names.txt").symlink_to(names)
    assert_refused(run, f"is {photos}/names.txt: repeat", "names.txt", out, "--add-new")


def test_photos_that_moved_are_named_by_a_flag(run: Run, photos: Path, tmp_path: Path) -> None:
    new, out = tmp_path / "disk/photos", tmp_path / "a"
    assert run(photos, out, "--embeddings")[0] == 0
    new.parent.mkdir()
    photos.rename(new)
    again = partial(run, new, out, "--add-new")
    reason = f"photos was {photos}, is {new}: repeat the earlier options, or use another folder; "
    assert_refused(again, f"{reason}if the photos moved, add --photos {new}")
    photos.mkdir()
    (photos / "other.png").write_bytes(make_photo())
    moved = ("--add-new", "--photos")
    reason = f"IN and --photos are two places, {tmp_path} and {new}"
    assert_refused(run, reason, tmp_path, out, *moved, new)
    reason = f"--photos: {photos}/00.png is missing, as all photos of"
    assert_refused(run, reason, photos, out, *moved, photos)
    told = "0 tagged, 0 failed, 3 done before\n"
    for place in (photos, new):  # IN is the earlier or the new place
        assert run(place, out, *moved, new) == (0, told, "")
    assert again() == (0, told, "")
    # Results of others could name any folder.
    reason = "--from with --xmp needs --photos, the folder of the photos"
    assert_refused(run, reason, "--from", out, tmp_path / "b", "--xmp")


def test_bulk_counts_sidecars_and_exits_with_1_if_one_is_not_written(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    tags = ("--threshold", "0", "--xmp")
    (photos / "00.png.xmp").mkdir()
    assert_refused(run, "--xmp needs a local folder", "s3://bucket/a", tmp_path / "a", *tags)
    assert not (tmp_path / "a").exists()
    told = "3 tagged, 0 failed, 0 done before, 2 sidecars written, 1 sidecars not written\n"
    assert run(photos, tmp_path / "a", *tags)[:2] == (1, told)
    (photos / "00.png.xmp").rmdir()
    told = "0 tagged, 0 failed, 3 done before, 1 sidecars written\n"
    assert run(photos, tmp_path / "a", "--add-new", "--xmp") == (0, told, "")
    assert len(list(photos.glob("*.png.xmp"))) == 3
