"""The result folder: whole parts, one question, one run at a time."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.cli.bulk.parts import FLAGGED, QUESTION_FILE, Record, open_parts, open_results
from service.errors import StartError

QUESTION: dict[str, Any] = {
    "model": {"name": "tiny", "version": "1"},
    "label_sets": [],
    "question": {"top_k": 2},
    "photos": "/photos",
}
FLAGS = QUESTION | {FLAGGED: True}
LABEL = {"label": "cat", "score": 0.5, "threshold": 0.4, "source": "trained", "calibrated": True}


def record(name: str, error: str | None = None) -> Record:
    found = {"width": 4, "height": 3, "labels": [LABEL]}
    nothing = {"width": None, "height": None, "labels": None}
    return {"photo": name, "error": error, **(found if error is None else nothing)}


def assert_not_opened(folder: Path, reason: str, question: dict[str, Any] = QUESTION) -> None:
    with pytest.raises(StartError, match=reason), open_parts(str(folder), question):
        pytest.fail("it was opened")


def test_written_photos_are_done_and_readable(tmp_path: Path) -> None:
    with open_parts(str(tmp_path / "out"), QUESTION) as parts:
        assert not parts.read_done()
        parts.write([record("a"), record("b", error="broken")])
        parts.write([record("c")])
    with open_parts(str(tmp_path / "out"), QUESTION) as parts:
        assert parts.read_done() == {"a": True, "b": False, "c": True}
    rows = {row["photo"]: row for row in pq.read_table(tmp_path / "out").to_pylist()}
    assert rows["a"] == record("a") | {"labels": [LABEL | {"threshold": pytest.approx(0.4)}]}
    assert rows["b"] == record("b", error="broken")


def test_part_that_is_written_twice_replaces_itself(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        parts.write([record("a")])
        parts.write([record("a")])
    assert pq.read_table(tmp_path).column("photo").to_pylist() == ["a"]


def test_forget_failed_removes_only_named_photos_with_errors(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        parts.write([record("a"), record("b", error="broken")])
        parts.write([record("c", error="broken")])
        parts.write([record("d", error="broken"), record("e", error="broken")])
        before = pq.read_table(tmp_path)
        parts.forget_failed(["a", "b", "c", "d"])
        assert parts.read_done() == {"a": True, "e": False}
    after = pq.read_table(tmp_path)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert len(list(tmp_path.glob("part-*"))) == 2
    rows = {row["photo"]: row for row in before.to_pylist()}
    assert {row["photo"]: row for row in after.to_pylist()} == {n: rows[n] for n in ("a", "e")}


def test_open_parts_removes_unfinished_files(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        parts.write([record("a")])
    half = tmp_path / ".part-0123.parquet.77.tmp"
    half.write_bytes(b"PAR1")
    with open_parts(str(tmp_path), QUESTION) as parts:
        assert set(parts.read_done()) == {"a"}
    assert not half.exists()


def test_open_parts_refuses_another_question_and_parts_without_one(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        parts.write([record("a")])
    assert_not_opened(tmp_path, "precision was none, is int8", QUESTION | {"precision": "int8"})
    for damaged in ("{", "[" * 100_000):
        (tmp_path / QUESTION_FILE).write_text(damaged)
        assert_not_opened(tmp_path, f"a {QUESTION_FILE} that cannot be read: use another folder")
    (tmp_path / QUESTION_FILE).unlink()
    assert_not_opened(tmp_path, "parts but no")


def test_folder_of_an_earlier_version_continues_without_flags(tmp_path: Path) -> None:
    found = [LABEL | {"found": False}, LABEL | {"label": "dog", "found": True}]
    for folder, begun in ((tmp_path / "old", QUESTION), (tmp_path / "new", FLAGS)):
        with open_parts(str(folder), begun) as parts:
            parts.write([record("a")] if begun is QUESTION else [record("a") | {"labels": found}])
        with open_parts(str(folder), FLAGS) as parts:
            parts.write([record("b") | {"labels": found}])
        labels = pq.read_table(folder)["labels"].to_pylist()
        assert {"found" in label for row in labels for label in row} == {begun is FLAGS}
        names = dict(open_results(str(folder)).read_found())
        assert names["b"] == (["dog"] if begun is FLAGS else ["cat", "dog"])
    assert_not_opened(tmp_path / "new", "found was True, is none", QUESTION)


def test_open_parts_refuses_a_second_run_at_the_same_time(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        assert_not_opened(tmp_path, "another run")
        parts.write([record("a")])
    (tmp_path / "_bulk.lock").unlink()
    (tmp_path / "target").write_text("mine")
    (tmp_path / "_bulk.lock").symlink_to(tmp_path / "target")
    assert_not_opened(tmp_path, "_bulk.lock must be a file, not a link: delete it")
    assert (tmp_path / "target").read_text() == "mine"
    (tmp_path / "_bulk.lock").unlink()
    with open_parts(str(tmp_path), QUESTION) as parts:
        assert parts.read_done() == {"a": True}


def test_damaged_part_is_named_in_the_error(tmp_path: Path) -> None:
    with open_parts(str(tmp_path), QUESTION) as parts:
        parts.write([record("a")])
        damaged = tmp_path / "part-77.parquet"
        odd = pa.table({"photo": [[1]], "error": [0.5], "labels": [1]})
        for put in (lambda: damaged.write_bytes(b"junk"), lambda: pq.write_table(odd, damaged)):
            put()
            for read in (
                *(parts.read_done, lambda: parts.forget_failed(["a"])),
                lambda: [*parts.read_found()],
            ):
                with pytest.raises(StartError, match=r"part-77\.parquet cannot be read"):
                    read()
        (tmp_path / "part-77.parquet").unlink()
        assert parts.read_done() == {"a": True}


def test_open_parts_fails_if_the_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_not_opened(tmp_path / "file" / "out", "file/out")
