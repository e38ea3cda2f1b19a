"""Embeddings in the results of bulk, and answers from them alone."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.bundle.reader import Bundle
from service.cli.bulk.run import BulkJob, Totals, run_bulk
from service.cli.learn import learn_folder
from service.errors import StartError
from service.question import Question
from service.settings import Settings
from tests.support.photos import make_photo, write_photos
from tests.support.tiny_bundle import (
    WIDTH,
    change_graphs,
    open_card,
    open_draft,
    parse_graph,
    tiny_draft,
    tiny_encoder,
    write_draft,
    write_learning_bundle,
)

LABELS = Question(candidate_labels=["yak", "newt", "crow"], top_k=2)
FIRST_TOKEN = f"""(float[B, S, {WIDTH}] tokens, float[L, {WIDTH}] queries) =>
    (float[B, L] logits) {{
    first = Gather <axis = 1> (tokens, zero)
    length = ReduceL2 <keepdims = 1> (first, last)
    image = Div (first, length)
    columns = Transpose <perm = [1, 0]> (queries)
    logits = MatMul (image, columns)
}}"""


def write_towers(parent: Path, **graphs: bytes) -> Bundle:
    """Writes a tiny bundle with the open head of two towers, some graphs replaced."""
    draft = open_draft(open_card(trained=False, kind="clip"), trained=False)
    graphs = {"open_head": parse_graph(FIRST_TOKEN, zero=0, last=[-1]), **graphs}
    return write_draft(parent, change_graphs(draft, **graphs))


@pytest.fixture
def job(tmp_path: Path) -> BulkJob:
    """Answers from the embeddings of five photos and a broken file."""
    write_photos(tmp_path / "photos", 5)
    (tmp_path / "photos/bad.jpg").write_bytes(b"junk")
    settings = Settings(bundle=write_towers(tmp_path).path, device="cpu", label_store="memory")
    first = Question(embedding=True, label_set=["everyday"])
    job = BulkJob(str(tmp_path / "photos"), str(tmp_path / "first"), first, settings, 3)
    assert run(job) == Totals(tagged=5, failed=1)
    return replace(
        job, photos=job.out, out=str(tmp_path / "out"), question=LABELS, from_results=True
    )


def run(job: BulkJob) -> Totals:
    return asyncio.run(run_bulk(job, lambda _now, _to_do: None))


def read_rows(folder: str) -> list[dict[str, Any]]:
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: str(row["photo"]))


def test_answers_without_photos_are_those_of_the_photos(job: BulkJob, tmp_path: Path) -> None:
    table = pq.read_table(job.photos)
    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    vectors = table["embedding"].drop_null().to_pylist()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(5), atol=1e-6)
    photos = replace(
        job, photos=str(tmp_path / "photos"), out=str(tmp_path / "fresh"), from_results=False
    )
    run(photos)
    shutil.rmtree(tmp_path / "photos")
    assert run(job) == Totals(tagged=5, failed=1)
    found, expected = read_rows(job.out), read_rows(photos.out)
    for row, other in zip(found, expected, strict=True):
        for label, fresh in zip(row["labels"] or (), other["labels"] or (), strict=True):
            label["score"] = pytest.approx(fresh["score"], abs=1e-5)
    assert found == expected
    assert run(job) == Totals(skipped=6, failed_before=1)


def test_sets_of_examples_alone_need_no_photos(job: BulkJob, tmp_path: Path) -> None:
    bundle = write_learning_bundle(tmp_path, tiny_draft())
    store = str(tmp_path / "labels.db")
    settings = job.settings.model_copy(update={"bundle": bundle.path, "label_store": store})

    (tmp_path / "mugs").mkdir()
    (tmp_path / "mugs/mug").symlink_to(tmp_path / "photos")

    def learn() -> None:
        folder = tmp_path / "mugs"
        asyncio.run(learn_folder(settings, "mine", folder, replace=False, as_json=True))

    learn()
    question = Question(label_set=["mine"], threshold=0.0)
    photos = replace(job, photos=str(tmp_path / "photos"), from_results=False, settings=settings)
    first = replace(photos, out=str(tmp_path / "embedded"), question=Question(embedding=True))
    fresh = replace(photos, out=str(tmp_path / "fresh"), question=question)
    again = replace(first, photos=first.out, out=job.out, question=question, from_results=True)
    for each in (first, fresh, again):
        assert run(each) == Totals(tagged=5, failed=1)
    found, expected = read_rows(again.out), read_rows(fresh.out)
    assert [len(row["labels"] or ()) for row in found] == [1, 1, 1, 1, 1, 0]
    for row, other in zip(found[:5], expected[:5], strict=True):
        assert row["labels"][0]["score"] == pytest.approx(other["labels"][0]["score"], abs=1e-5)
    (tmp_path / "photos/more.png").write_bytes(make_photo(9))
    learn()
    with pytest.raises(StartError, match="label set mine has learnt since: add --add-new"):
        run(again)
    assert run(replace(again, add_new=True)) == Totals(tagged=5, failed=1)


def test_jobs_that_need_the_photos_are_refused(
    job: BulkJob, open_bundle: Bundle, tmp_path: Path
) -> None:
    def refuse(reason: str, bundle: Path = job.settings.bundle, **changes: Any) -> None:
        settings = job.settings.model_copy(update={"bundle": bundle})
        with pytest.raises(StartError, match=reason):
            run(replace(job, settings=settings, **changes))

    other = write_towers(tmp_path / "other", encoder=tiny_encoder(7))
    refuse("embeddings of another encoder", other.path)
    question = Question(label_set=["everyday", "trained"], exclude=["dog"])
    names = "'chair', 'table', 'lamp', 'cat', 'car', 'tree', 'person': leave"
    refuse(
        f"cannot answer 7 label.s. that need the photos: {names}",
        open_bundle.path,
        question=question,
    )
    assert not Path(job.out).exists()
    assert run(job).tagged == 5
    for folder in (job.out, str(tmp_path / "photos")):
        refuse("has no embeddings: run bulk --embeddings on the photos", photos=folder)
