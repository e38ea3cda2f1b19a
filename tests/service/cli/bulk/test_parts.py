"""The result folder: whole parts, one question, one run at a time."""

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from service.cli.bulk import parts as results
from service.cli.bulk.parts import FLAGGED, QUESTION_FILE, Record, open_parts, open_results
from service.errors import StartError
from tests.support.tiny_bundle import random_label_set

QUESTION: dict[str, Any] = {
    "model": {"name": "tiny", "version": "1"},
    "label_sets": [],
    "question": {"top_k": 2},
    "photos": "/photos",
}
FLAGS = QUESTION | {FLAGGED: True}
PETS = random_label_set(0, ["cat", "dog", "cow"])
LABEL = {"label": "cat", "score": 0.5, "threshold": 0.4, "source": "trained", "calibrated": True}


def record(name: str, error: str | None = None) -> Record:
    found = {"width": 4, "height": 3, "labels": [LABEL]}
    nothing = {"width": None, "height": None, "labels": None}
    return {"photo": name, "error": error, **(found if error is None else nothing)}


def assert_not_opened(
    folder: Path, reason: str, question: dict[str, Any] = QUESTION, **options: Any
) -> None:
    with pytest.raises(StartError, match=reason), open_parts(str(folder), question, **options):
        pytest.fail("it was opened")


def test_written_photos_are_done_and_readable_once(tmp_path: Path) -> None:
    with open_parts(str(tmp_path / "out"), QUESTION) as parts:
        assert not parts.read_done()
        for names in ("ab", "c", "c"):  # a part that is written twice replaces itself
            parts.write([record(n, error="broken" if n == "b" else None) for n in names])
    half = tmp_path / "out/.part-0123.parquet.77.tmp"  # of a run that was killed
    half.write_bytes(b"PAR1")
    with open_parts(str(tmp_path / "out"), QUESTION) as parts:
        assert parts.read_done() == {"a": True, "b": False, "c": True}
    assert not half.exists()
    found = pq.read_table(tmp_path / "out").to_pylist()
    rows = {row["photo"]: row for row in found}
    assert len(rows) == len(found)
    assert rows["a"] == record("a") | {"labels": [LABEL | {"threshold": pytest.approx(0.4)}]}
    assert rows["b"] == record("b", error="broken")


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
    assert_not_opened(tmp_path / "target" / "out", "target/out")  # below a file
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


def ask(examples: str | None, count: int = 3, **changes: Any) -> dict[str, Any]:
    """The question to the first labels of PETS, which have learnt from `examples`."""
    labels = {"name": PETS.name, "digest": "1", "examples": examples, **changes}
    return QUESTION | {"label_sets": [labels], "texts": [results.describe_texts(PETS, count)]}


def tag(folder: Path, question: dict[str, Any], label: str) -> None:
    """Tags three photos as a run does, into two parts."""
    with open_parts(str(folder), question, [PETS], add_new=True) as parts:
        done = parts.read_done()
        for names in (("a", "b"), ("c",)):
            rows = [record(name) | {"labels": [LABEL | {"label": label}]} for name in names]
            if names[0] not in done:
                parts.write(rows)
        if parts.earlier is not None:
            parts.earlier.adopt_next()


def read_labels(folder: Path) -> list[str]:
    return sorted(f"{photo} {label}" for photo, (label,) in open_results(str(folder)).read_found())


class Killed(Exception):
    """The run ends here."""


class KillingFiles:
    """Files as of an object store; after so many changes the next one is not made."""

    def __init__(self, changes: int) -> None:
        self._files, self._left = fs.LocalFileSystem(), changes

    def __getattr__(self, name: str) -> Any:
        if name in {"create_dir", "delete_dir", "delete_file", "move", "open_output_stream"}:
            if not self._left:
                raise Killed
            self._left -= 1
        return getattr(self._files, name)


def test_results_are_replaced_whole_or_not_at_all_wherever_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[str] = []
    for changes in count():
        folder = tmp_path / str(changes)
        tag(folder, ask("1"), "old")
        with monkeypatch.context() as patch:
            files = KillingFiles(changes)
            patch.setattr(
                "service.cli.bulk.parts.open_filesystem", lambda path, files=files: (files, path)
            )
            try:
                tag(folder, ask("2"), "new")
            except Killed:
                outcomes.append("")
        if changes % 2:  # else the next run is the first to read them
            found = read_labels(folder)
            assert found in (["a old", "b old", "c old"], ["a new", "b new", "c new"])
            outcomes.append(found[0])
        tag(folder, ask("2"), "new")
        assert read_labels(folder) == ["a new", "b new", "c new"]
        assert not (folder / "_next").exists()
        if outcomes.count("") == changes:  # it was not killed
            break
    assert "a old" in outcomes
    assert outcomes.count("a new") > 2


def test_only_sets_that_have_learnt_are_tagged_again(tmp_path: Path) -> None:
    learnt, changed = ("set0 has learnt since: add --add-new", "set0 has changed since: repeat")
    of_1_1, other_texts = {"texts": None}, {"texts": [[2, results.describe_texts(PETS)[1]]]}
    for row, (begun, now, reason) in enumerate(
        (
            (ask("1", count=2), ask("2", digest="2"), learnt),
            (ask(None), ask("2"), learnt),
            (ask("1") | of_1_1, ask("2"), learnt),
            (ask("1") | of_1_1, ask("2", digest="2"), changed),
            (ask("2"), ask(None), changed),
            (ask("1"), ask("1", digest="2"), changed),
            (ask("1") | other_texts, ask("2"), changed),
            (ask("1"), ask("2") | {"precision": "int8"}, "precision was none, is int8: repeat"),
        )
    ):
        folder, is_good = tmp_path / str(row), reason == learnt
        tag(folder, {key: value for key, value in begun.items() if value}, "old")
        assert_not_opened(folder, reason, now, sets=[PETS], add_new=not is_good)
        tag(folder, now if is_good else begun, "new")
        assert read_labels(folder)[0] == ("a new" if is_good else "a old")
    (folder / "_next").symlink_to(tmp_path / "0")
    assert_not_opened(folder, "_next must be a folder, not a link: delete it", begun)
