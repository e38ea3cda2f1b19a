"""Tests of maps: a label's map depends on no other label and no other image."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.reader import Bundle
from service.engine.engine import Engine, open_engine
from service.errors import BundleError, InferenceFailed, NoMaps
from service.labels.label_set import LabelSet, make_trained_set
from service.pipeline.explanation import Explainer
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from tests.service.pipeline.conftest import running
from tests.support.photos import make_photo
from tests.support.tiny_bundle import (
    PATCH,
    PLAIN_HEAD,
    QUERY_WIDTH,
    SIDE,
    TINY_LABELS,
    TOKENS,
    add_memory,
    mapped_graphs,
    random_images,
    random_label_set,
    tiny_graphs,
    tiny_head,
    tiny_open_head,
    tiny_open_maps,
    tiny_trained_maps,
    write_mapped_bundle,
    write_tiny_bundle,
)

TRAINED = make_trained_set(TINY_LABELS, PLAIN_HEAD)
NAMES = [label.name for label in TINY_LABELS]
# Runs over other numbers of labels or images may sum in another order.
TOLERANCE = 1e-5
CELLS = (SIDE // PATCH, SIDE // PATCH)
Maps = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def engine(mapped_bundle: Bundle) -> Engine:
    return open_engine(mapped_bundle, device="cpu", max_batch_size=4, threads=2)


@pytest.fixture(scope="module")
def explainer(mapped_bundle: Bundle) -> Explainer:
    return Explainer(mapped_bundle)


OPEN = random_label_set(0, ["chair", "cat", "lamp"])


def explain(
    engine: Engine,
    explainer: Explainer,
    images: NDArray[np.uint8],
    question: Question,
    sets: tuple[LabelSet, ...] = (TRAINED, OPEN),
) -> list[Maps]:
    """Returns the maps of each image by label, all images being one batch."""
    selection = select_labels(sets, question)
    rows = range(len(images))
    found = []
    for logits, memories in engine.run(images, [selection.heads] * len(images), explained=rows):
        labels = score_labels(logits, selection)
        made = explainer.explain_labels(labels, selection, memories, (48, 32))
        found.append({x.label: e.map for x, e in zip(labels, made, strict=True)})
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), some=st.sets(st.sampled_from([*NAMES, "chair", "lamp"])))
def test_map_does_not_depend_on_the_other_labels(
    engine: Engine, explainer: Explainer, seed: int, some: set[str]
) -> None:
    images = random_images(seed, 1)
    everything = Question(top_k=99, explain=True)
    (whole,) = explain(engine, explainer, images, everything)
    assert set(whole) == {*NAMES, "chair", "lamp"}
    (part,) = explain(
        engine, explainer, images, Question(top_k=99, explain=True, include=tuple(some))
    )
    assert part.keys() == (some or whole.keys())
    for name, cells in part.items():
        np.testing.assert_allclose(cells, whole[name], atol=TOLERANCE, rtol=0)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), count=st.integers(2, 4))
def test_map_does_not_depend_on_the_batch(
    engine: Engine, explainer: Explainer, seed: int, count: int
) -> None:
    images, question = random_images(seed, count), Question(top_k=99, explain=True)
    for image, together in zip(images, explain(engine, explainer, images, question), strict=True):
        (alone,) = explain(engine, explainer, image[None], question)
        assert alone.keys() == together.keys()
        for name, cells in together.items():
            np.testing.assert_allclose(cells, alone[name], atol=TOLERANCE, rtol=0)


def test_label_is_explained_by_the_head_that_answers_it(
    engine: Engine, explainer: Explainer
) -> None:
    images, question = random_images(0, 1), Question(include=("cat",), top_k=1, explain=True)
    (by_trained,) = explain(engine, explainer, images, question, (TRAINED, OPEN))
    (by_open,) = explain(engine, explainer, images, question, (OPEN, TRAINED))
    (trained_alone,) = explain(engine, explainer, images, question, (TRAINED,))
    (open_alone,) = explain(engine, explainer, images, question, (OPEN,))
    np.testing.assert_allclose(by_trained["cat"], trained_alone["cat"], atol=TOLERANCE)
    np.testing.assert_allclose(by_open["cat"], open_alone["cat"], atol=TOLERANCE)
    assert not np.allclose(by_trained["cat"], by_open["cat"])


def test_map_is_a_small_grid_of_shares(engine: Engine, explainer: Explainer) -> None:
    (maps,) = explain(engine, explainer, random_images(1, 1), Question(top_k=99, explain=True))
    for cells in maps.values():
        assert (cells.shape, cells.dtype) == (CELLS, np.float32)
        assert 0 <= cells.min() <= cells.max() <= 1
    assert max(cells.max() for cells in maps.values()) == 1


def test_engine_returns_memory_of_explained_rows_only(engine: Engine) -> None:
    images = random_images(2, 3)
    plain = engine.run(images, [[None, OPEN.queries]] * 3)
    mixed = engine.run(images, [[None, OPEN.queries]] * 3, explained=[1])
    assert [len(each.memories) for each in mixed] == [0, 2, 0]
    for before, after in zip(plain, mixed, strict=True):
        for wanted, found in zip(before.logits, after.logits, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert {memory.shape for memory in mixed[1].memories} == {(TOKENS, QUERY_WIDTH)}


def test_inference_fails_on_memory_of_another_width(explainer: Explainer) -> None:
    question = Question(top_k=1, explain=True)
    selection = select_labels((TRAINED,), question)
    labels = score_labels([np.zeros(len(NAMES), np.float32)], selection)
    with pytest.raises(InferenceFailed):
        explainer.explain_labels(labels, selection, [np.zeros((TOKENS, 3), np.float32)], (4, 4))
    good = [np.ones((TOKENS, QUERY_WIDTH), np.float32)]
    assert len(explainer.explain_labels(labels, selection, good, (4, 4))) == 1


def test_wrong_graph_of_maps_is_refused(tmp_path: Path) -> None:
    for name, graph in (
        ("trained_head_maps", tiny_open_maps()),
        ("open_head_maps", tiny_trained_maps()),
        ("open_head_maps", add_memory(tiny_head())),
    ):
        graphs = {**mapped_graphs(), name: {"fp32": graph}}
        bundle = write_mapped_bundle(tmp_path, graphs)  # type: ignore[arg-type]
        with pytest.raises(BundleError, match=f"{name} has "):
            Explainer(bundle)
    assert Explainer(write_mapped_bundle(tmp_path)).knows_open


def test_graph_of_maps_is_refused_in_another_precision_or_without_its_head(tmp_path: Path) -> None:
    graphs = {**mapped_graphs(), "open_head_maps": {"int8": tiny_open_maps()}}
    with pytest.raises(BundleError, match="open_head_maps must be fp32"):
        write_mapped_bundle(tmp_path, graphs)  # type: ignore[arg-type]
    maps = {"fp32": tiny_open_maps()}
    with pytest.raises(BundleError, match="open_head_maps belongs to no head"):
        write_tiny_bundle(tmp_path, graphs={**tiny_graphs(), "open_head_maps": maps})  # type: ignore[dict-item]
    assert write_mapped_bundle(tmp_path)


@pytest.mark.parametrize(
    ("name", "head"), [("trained_head", tiny_head()), ("open_head", tiny_open_head())]
)
def test_head_without_memory_is_refused_beside_maps(tmp_path: Path, name: str, head: bytes) -> None:
    graphs = {**mapped_graphs(), name: {"fp32": head}}
    with pytest.raises(BundleError, match=f"{name} has logits where it should have only"):
        open_engine(write_mapped_bundle(tmp_path, graphs), device="cpu")


@pytest.mark.anyio
async def test_scores_do_not_depend_on_explain(mapped_bundle: Bundle) -> None:
    async with running(mapped_bundle) as pipeline:
        plain = await pipeline.select(Question(top_k=5))
        asked = await pipeline.select(Question(top_k=5, explain=True))
        photos = [make_photo(seed) for seed in range(4)]
        predictions = await asyncio.gather(
            *(pipeline.predict(p, s) for p in photos for s in (plain, asked))
        )
        for without, with_maps in zip(predictions[::2], predictions[1::2], strict=True):
            assert [label.label for label in with_maps.labels] == [x.label for x in without.labels]
            for a, b in zip(without.labels, with_maps.labels, strict=True):
                assert b.score == pytest.approx(a.score, abs=TOLERANCE)
            assert without.explanations == ()
            assert len(with_maps.explanations) == 5


@pytest.mark.anyio
async def test_explain_is_refused_for_labels_without_maps(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    async with running(open_bundle) as pipeline:
        for names in (("trained",), ("everyday",), ("trained", "everyday")):
            with pytest.raises(NoMaps):
                await pipeline.select(Question(label_set=names, explain=True))
        assert await pipeline.select(Question(label_set=("trained",)))
    graphs = {**mapped_graphs(), "open_head": {"fp32": tiny_open_head()}}
    del graphs["open_head_maps"]
    async with running(write_mapped_bundle(tmp_path, graphs)) as pipeline:
        assert await pipeline.select(Question(label_set=("trained",), explain=True))
        with pytest.raises(NoMaps):
            await pipeline.select(Question(label_set=("trained", "everyday"), explain=True))
