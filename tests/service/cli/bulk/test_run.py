"""Bulk runs in this process and, killed, as a process of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL.PngImagePlugin import PngImageFile

from service.bundle.reader import Bundle
from service.cli.bulk.parts import QUESTION_FILE, open_results
from service.cli.bulk.run import BulkJob, Totals, run_bulk
from service.cli.local_pipeline import run_pipeline
from service.errors import StartError, UnknownLabelSet
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore
from service.labels.words import Words
from service.pipeline.prediction import Prediction
from service.question import Question
from service.settings import Settings
from tests.e2e.server_process import ROOT
from tests.support.label_store import LIMITS, define, put
from tests.support.photos import encode_picture, make_photo, make_picture, write_photos
from tests.support.threads import wait_until
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE, make_calibration, write_tiny_bundle

# Files hold float32, and a photo's batch may be of any size.
TOLERANCE = 1e-5


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    write_photos(folder, 11)
    (folder / "broken.jpg").write_bytes(b"junk")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def job(tiny_bundle: Bundle, photos: Path, out: Path) -> BulkJob:
    settings = Settings(
        bundle=tiny_bundle.path, device="cpu", label_store="memory", max_body_bytes=10_000_000
    )
    return BulkJob(
        str(photos), str(out), question=Question(top_k=2), settings=settings, part_size=4
    )


def run(job: BulkJob) -> tuple[Totals, list[int]]:
    """Runs the job; returns the totals and how many photos were done at each report."""
    seen: list[int] = []
    totals = asyncio.run(run_bulk(job, lambda now, _to_do: seen.append(now)))
    return totals, seen


def read_rows(out: Path) -> dict[str, dict[str, Any]]:
    rows = pq.read_table(out).to_pylist()
    assert max(Counter(row["photo"] for row in rows).values()) == 1, "a photo stands twice"
    return {row["photo"]: row for row in rows}


def test_run_writes_a_row_per_photo_and_an_error_for_a_bad_one(
    job: BulkJob, photos: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    totals, seen = run(job)
    assert "category" not in str(pq.read_schema(next(out.glob("*.parquet"))))
    assert totals == Totals(tagged=11, failed=1, skipped=0)
    assert "broken.jpg was not tagged: The file is damaged or is not an image" in caplog.messages
    assert seen == list(range(13))
    rows = read_rows(out)
    assert set(rows) == {path.name for path in photos.iterdir()}
    assert rows["broken.jpg"]["error"] == "The file is damaged or is not an image"
    assert rows["broken.jpg"]["labels"] is None
    assert {len(row["labels"]) for row in rows.values() if row["error"] is None} == {2}


def test_rows_equal_the_answers_of_predict(
    job: BulkJob, open_bundle: Bundle, photos: Path, out: Path
) -> None:
    question = Question(label_set=("everyday", "trained"), threshold=0.0)
    settings = job.settings.model_copy(update={"bundle": open_bundle.path})
    run(replace(job, question=question, settings=settings))
    row = read_rows(out)["03.png"]
    assert (row["width"], row["height"]) == (48, 32)

    async def predict() -> Prediction:
        async with run_pipeline(settings) as pipeline:
            selection = await pipeline.select(question)
            return await pipeline.predict((photos / "03.png").read_bytes(), selection)

    expected = asyncio.run(predict()).describe()["labels"]
    assert row["labels"] == [
        label | {key: pytest.approx(label[key], abs=TOLERANCE) for key in ("score", "threshold")}
        for label in expected
    ]


def test_rows_have_a_category_column_if_labels_have_categories(
    job: BulkJob, categorised_bundle: Bundle, out: Path
) -> None:
    settings = job.settings.model_copy(update={"bundle": categorised_bundle.path})
    run(replace(job, settings=settings, question=Question(threshold=0.0)))
    labels = read_rows(out)["03.png"]["labels"]
    found = {label["label"]: label["category"] for label in labels}
    assert (found["dog"], found["car"], found["tree"]) == ("rating", "vehicle", None)


def test_rows_have_translations_and_parents_if_the_question_asks_for_them(
    job: BulkJob, open_bundle: Bundle, out: Path, tmp_path: Path
) -> None:
    store = str(tmp_path / "labels.db")
    settings = Settings(bundle=open_bundle.path, device="cpu", label_store=store, lang="de")
    rows = np.ones((1, EMBEDDING_WIDTH), np.float32)

    def ask(*parents: str, **question: Any) -> dict[str, Any]:
        words = {"yak": Words(("ox",), parents, {"de": "Jak", "fr": "yack"})}
        with closing(LabelStore(open_database(store), SPACE.fingerprint, LIMITS)) as labels:
            labels.write(define("zoo", "yak", words=words), rows, replace=True)
        asked = Question(label_set=("zoo",), threshold=0.0, **question)
        results = str(out / "-".join(("a", *question)))
        run(replace(job, question=asked, settings=settings, out=results))
        found = {"names": ["Jak", "ox", "yack", "yak"], "parents": [*parents], "translation": "Jak"}
        assert question or open_results(results).read_words()["yak"] == found
        (label,) = read_rows(Path(results))["03.png"]["labels"]
        return {
            key: label[key]
            for key in ("translation", "parents", "parent_translations")
            if key in label
        }

    assert ask("beast") == {}
    begun = (out / "a" / QUESTION_FILE).read_text()
    assert not {"lang", "parents"} & json.loads(begun)["question"].keys()
    (out / "a/_words.json").write_text("[")  # damaged
    assert ask("cattle", "animal") == {}
    assert (out / "a" / QUESTION_FILE).read_text() == begun
    parents = {"parents": ["cattle", "animal"]}
    above = {"translation": "Jak", "parent_translations": ["cattle", "animal"]}
    assert ask("cattle", "animal", parents=True) == parents
    assert ask("cattle", "animal", lang="de", parents=True) == parents | above
    assert ask("animal", lang="fr") == {"translation": "yack"}
    assert ask("animal", parent=("animal",)) == {}
    with pytest.raises(StartError, match="label set zoo has changed since: repeat"):
        ask("animal", "beast", parent=("animal",))


def test_run_records_an_error_for_a_file_over_the_limit_and_leaves_unreadable_ones_to_the_next(
    job: BulkJob, photos: Path, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photos / "big.png").write_bytes(bytes(10_000_001))
    failing = photos / "11.png"
    failing.symlink_to("/proc/self/mem")  # its first byte is an input/output error
    names = ("00", "late", "01", "big", "11")
    (tmp_path / "list.txt").write_text("\n".join(f"photos/{name}.png" for name in names))
    job = replace(job, photos=str(tmp_path / "list.txt"), part_size=2)
    totals, seen = run(job)
    assert totals == Totals(tagged=2, failed=1, unread=2)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert "photos/11.png was not read: [Errno 5]" in caplog.text
    assert "photos/late.png was not read: [Errno 2]" in caplog.text
    assert "larger than 10000000 bytes" in read_rows(out)["photos/big.png"]["error"]

    failing.unlink()
    for name in ("11", "late"):
        (photos / f"{name}.png").write_bytes(make_photo(11))
    assert run(job)[0] == Totals(tagged=2, skipped=3, failed_before=1)
    assert len(read_rows(out)) == 5


def test_run_leaves_a_photo_without_memory_to_the_next_run(
    job: BulkJob, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (photos / "large.png").write_bytes(encode_picture(make_picture(1, 700, 500)))
    load = PngImageFile.load

    def fail_if_large(image: PngImageFile) -> Any:
        if image.width == 700:
            raise MemoryError
        return load(image)

    with monkeypatch.context() as patch:
        patch.setattr(PngImageFile, "load", fail_if_large)
        assert run(job)[0] == Totals(tagged=11, failed=1, unread=1)
    assert "large.png was not read: too little memory" in caplog.text
    assert run(job)[0] == Totals(tagged=1, skipped=12, failed_before=1)


def test_run_writes_nothing_if_the_question_is_invalid(job: BulkJob, out: Path) -> None:
    job = replace(job, question=Question(label_set=("none",)))
    with pytest.raises(UnknownLabelSet):
        run(job)
    assert not out.exists()


def test_run_refuses_a_folder_of_another_question_limit_or_calibration_of_the_same_version(
    job: BulkJob, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    def calibrate(scale: float) -> BulkJob:
        head = tiny_bundle.card.trained_head
        head = head.model_copy(update={"calibration": make_calibration(scale, 0.5)})
        card = tiny_bundle.card.model_copy(update={"trained_head": head})
        path = write_tiny_bundle(tmp_path / f"scale-{scale}", card).path
        return replace(job, settings=job.settings.model_copy(update={"bundle": path}))

    first = calibrate(2.0)
    run(first)
    limited = first.settings.model_copy(update={"max_pixels": 7})
    newer = write_tiny_bundle(tmp_path, tiny_bundle.card.model_copy(update={"version": "7"})).path
    others = {
        "label set trained has changed since: repeat": calibrate(3.0),
        "max_pixels was 50000000, is 7: repeat": replace(first, settings=limited),
        "top_k was 2, is none; min_labels was none, is 2: repeat": replace(
            first, question=Question(min_labels=2)
        ),
        r"embedding was none, is \w+: repeat": replace(
            first, question=Question(top_k=2, embedding=True)
        ),
        "model was tiny 1.0, is tiny 7: repeat": replace(
            job, settings=job.settings.model_copy(update={"bundle": newer})
        ),
    }
    for difference, other in others.items():
        with pytest.raises(StartError, match=f"out was begun otherwise: {difference}"):
            run(other)
    assert run(first)[0].skipped == 12


def test_run_compares_label_sets_by_labels_and_not_by_version(
    job: BulkJob, open_bundle: Bundle, tmp_path: Path
) -> None:
    question = Question(label_set=("zoo",), top_k=2)

    def tag(store: str) -> Totals:
        settings = Settings(
            bundle=open_bundle.path, device="cpu", label_store=str(tmp_path / store)
        )
        return run(replace(job, question=question, settings=settings))[0]

    def register(name: str, *labels: str) -> int:
        database = open_database(str(tmp_path / name))
        with closing(LabelStore(database, SPACE.fingerprint, LIMITS)) as store:
            return put(store, "zoo", *labels)

    first = register("first.db", "yak", "newt")
    assert tag("first.db").tagged == 11
    assert register("second.db", "cat", "dog") == first
    with pytest.raises(StartError, match="label set zoo has changed since: repeat"):
        tag("second.db")
    assert register("second.db", "yak", "newt") != first
    assert tag("second.db").skipped == 12


def test_run_continues_after_a_kill_without_duplicates_or_gaps(
    job: BulkJob, photos: Path, out: Path
) -> None:
    # Large enough that a part takes a moment: the kill falls between two parts.
    large = encode_picture(make_picture(0, 900, 700), compress_level=1)
    for number in range(11, 40):
        (photos / f"{number}.png").write_bytes(large)
    command = [sys.executable, "-m", "service.cli", "bulk", job.photos, job.out, "--top-k", "2"]
    command += ["--bundle", str(job.settings.bundle), "--device", "cpu", "--part-size", "2"]
    command += ["--max-body-bytes", str(job.settings.max_body_bytes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        wait_until(lambda: len(list(out.glob("part-*"))) > 2, 120)
        process.send_signal(signal.SIGKILL)
    before = read_rows(out)
    assert 0 < len(before) < 41, "the kill came too late to show anything"
    totals = run(job)[0]
    assert (totals.seen, totals.skipped) == (41 - len(before), len(before))
    assert set(read_rows(out)) == {path.name for path in photos.iterdir()}
