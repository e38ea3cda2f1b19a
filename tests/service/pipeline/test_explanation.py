"""Tests of maps, which depend on no other label and no other image, and of their overlays."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract
from service.bundle.reader import Bundle
from service.engine.engine import Engine, open_engine
from service.errors import BundleError, InferenceFailed, NoMaps
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.sources.source import Untold
from service.pipeline.explanation import Explainer, draw_overlay, find_grid, find_seen_part
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from tests.service.pipeline.conftest import make_learnt, running
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
OPEN = random_label_set(0, ["chair", "cat", "lamp"])
NAMES = [label.name for label in TINY_LABELS]
# Runs over other numbers of labels or images may sum in another order.
TOLERANCE = 1e-5
ALL = Question(top_k=99, explain=True)
Maps = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def engine(mapped_bundle: Bundle) -> Engine:
    return open_engine(mapped_bundle, device="cpu", max_batch_size=4, threads=2)


@pytest.fixture(scope="module")
def explainer(mapped_bundle: Bundle) -> Explainer:
    return Explainer(mapped_bundle)


def explain(
    engine: Engine,
    explainer: Explainer,
    images: NDArray[np.uint8],
    question: Question = ALL,
    sets: tuple[LabelSet, ...] = (TRAINED, OPEN),
) -> list[Maps]:
    """Returns the maps of each image by label, all images being one batch."""
    selection = select_labels(sets, question)
    rows = range(len(images))
    found = []
    for logits, memories, *_ in engine.run(images, [selection.heads] * len(images), explained=rows):
        labels = score_labels(logits, selection)
        made = explainer.explain_labels(labels, selection, memories, (48, 32))
        found.append({x.label: e.map for x, e in zip(labels, made, strict=True)})
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), some=st.sets(st.sampled_from([*NAMES, "chair", "lamp"])))
def test_map_does_not_depend_on_the_other_labels(
    engine: Engine, explainer: Explainer, seed: int, some: set[str]
) -> None:
    images, question = random_images(seed, 1), ALL.model_copy(update={"include": tuple(some)})
    (whole,), (part,) = (explain(engine, explainer, images, each) for each in (ALL, question))
    assert set(whole) == {*NAMES, "chair", "lamp"}
    assert part.keys() == (some or whole.keys())
    for name, cells in part.items():
        np.testing.assert_allclose(cells, whole[name], atol=TOLERANCE, rtol=0)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), count=st.integers(2, 4))
def test_map_is_a_grid_of_shares_that_does_not_depend_on_the_batch(
    engine: Engine, explainer: Explainer, seed: int, count: int
) -> None:
    images = random_images(seed, count)
    for image, together in zip(images, explain(engine, explainer, images), strict=True):
        (alone,) = explain(engine, explainer, image[None])
        assert alone.keys() == together.keys()
        for name, cells in together.items():
            assert (cells.shape, cells.dtype) == ((SIDE // PATCH, SIDE // PATCH), np.float32)
            assert 0 <= cells.min() <= cells.max() <= 1
            np.testing.assert_allclose(cells, alone[name], atol=TOLERANCE, rtol=0)
        assert max(cells.max() for cells in together.values()) == 1


def test_label_is_explained_by_the_head_that_answers_it(
    engine: Engine, explainer: Explainer
) -> None:
    images, question = random_images(0, 1), Question(include=("cat",), top_k=1, explain=True)
    by_trained, by_open, trained_alone, open_alone = (
        explain(engine, explainer, images, question, sets)[0]["cat"]
        for sets in ((TRAINED, OPEN), (OPEN, TRAINED), (TRAINED,), (OPEN,))
    )
    np.testing.assert_allclose(by_trained, trained_alone, atol=TOLERANCE)
    np.testing.assert_allclose(by_open, open_alone, atol=TOLERANCE)
    assert not np.allclose(by_trained, by_open)


def test_map_of_a_learnt_label_has_the_tokens_parts_of_its_score(
    engine: Engine, explainer: Explainer, tiny_bundle: Bundle
) -> None:
    images, learnt, side = random_images(3, 1), make_learnt(OPEN, "cat"), SIDE // PATCH
    (plain,) = explain(engine, explainer, images, sets=(OPEN,))
    bare = replace(learnt, source=Untold(len(learnt.names)))
    for labels, drawing in ((learnt, explainer), (bare, Explainer(tiny_bundle))):
        selection = select_labels([labels], ALL)
        assert drawing.covers(selection)
        (found,) = engine.run(images, [selection.heads], explained=[0], embedded=[0])
        scored = score_labels(found.logits, selection, found.embedding)
        made = drawing.explain_labels(scored, selection, found.memories, (48, 32), found.tokens)
        maps = {x.label: e.map for x, e in zip(scored, made, strict=True)}
        parts = (found.tokens @ learnt.learnt.vectors[0]).clip(0)  # type: ignore[union-attr]
        texts = {name: np.zeros((side, side)) for name in plain} if labels is bare else plain
        both = texts["cat"] + (parts / parts.max()).reshape(side, side)
        np.testing.assert_allclose(maps["cat"], both / both.max(), atol=TOLERANCE)
        np.testing.assert_allclose(maps["lamp"], texts["lamp"], atol=TOLERANCE)


def test_grid_has_all_tokens_but_those_before_the_patches() -> None:
    assert find_grid(261, 224, 224) == (16, 16)  # after a class token and four registers
    assert find_grid(729, 384, 384) == (27, 27)  # 384 is no multiple of 14
    assert find_grid(433, 384, 288) == (24, 18)
    assert find_grid(1, 448, 448) == (1, 1)


def test_inference_fails_on_memory_of_another_width(explainer: Explainer) -> None:
    selection = select_labels((TRAINED,), Question(top_k=1, explain="overlay"))
    labels = score_labels([np.zeros(len(NAMES), np.float32)], selection)
    with pytest.raises(InferenceFailed):
        explainer.explain_labels(labels, selection, [np.zeros((TOKENS, 3), np.float32)], (4, 4))
    good = [np.ones((TOKENS, QUERY_WIDTH), np.float32)]
    (found,) = explainer.explain_labels(labels, selection, good, (4, 4))
    assert found.overlay is not None


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        ("trained_head_maps", tiny_open_maps()),
        ("open_head_maps", tiny_trained_maps()),
        ("open_head_maps", add_memory(tiny_head())),
    ],
)
def test_wrong_graph_of_maps_is_refused(tmp_path: Path, name: str, graph: bytes) -> None:
    graphs: Any = {**mapped_graphs(), name: {"fp32": graph}}
    with pytest.raises(BundleError, match=f"{name} has "):
        Explainer(write_mapped_bundle(tmp_path, graphs))


def test_graph_of_maps_is_refused_in_another_precision_or_without_its_head(tmp_path: Path) -> None:
    graphs: Any = {**mapped_graphs(), "open_head_maps": {"int8": tiny_open_maps()}}
    with pytest.raises(BundleError, match="open_head_maps must be fp32"):
        write_mapped_bundle(tmp_path, graphs)
    graphs = {**tiny_graphs(), "open_head_maps": {"fp32": tiny_open_maps()}}
    with pytest.raises(BundleError, match="open_head_maps belongs to no head"):
        write_tiny_bundle(tmp_path, graphs=graphs)


@pytest.mark.parametrize(
    ("name", "head"), [("trained_head", tiny_head()), ("open_head", tiny_open_head())]
)
def test_head_without_memory_is_refused_with_maps(tmp_path: Path, name: str, head: bytes) -> None:
    graphs: Any = {**mapped_graphs(), name: {"fp32": head}}
    with pytest.raises(BundleError, match=f"{name} has logits where it should have only"):
        open_engine(write_mapped_bundle(tmp_path, graphs), device="cpu")


@pytest.mark.anyio
async def test_explain_is_refused_for_labels_without_maps(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    async with running(open_bundle) as pipeline:
        for names in (("trained",), ("everyday",), ("trained", "everyday")):
            with pytest.raises(NoMaps):
                await pipeline.select(Question(label_set=names, explain=True))
    graphs = {**mapped_graphs(), "open_head": {"fp32": tiny_open_head()}}
    del graphs["open_head_maps"]
    async with running(write_mapped_bundle(tmp_path, graphs)) as pipeline:
        assert await pipeline.select(Question(label_set=("trained",), explain=True))
        with pytest.raises(NoMaps):
            await pipeline.select(Question(label_set=("trained", "everyday"), explain=True))


SQUASH = InputContract(height=32, width=32, resize_mode="squash", interpolation="bilinear")
CROP = SQUASH.model_copy(update={"resize_mode": "crop", "crop_pct": 1.0})
PAD = SQUASH.model_copy(update={"resize_mode": "pad"})


def draw(values: np.ndarray, photo: tuple[int, int], contract: InputContract) -> np.ndarray:
    """Returns the overlay as RGBA, uint8 [height, width, 4]."""
    data = draw_overlay(values.astype(np.float32), photo, contract)
    with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
        return np.asarray(picture.convert("RGBA"))


def test_overlay_is_transparent_at_zero_and_most_opaque_at_the_peak() -> None:
    values = np.zeros((4, 4))
    assert draw(values, (50, 50), SQUASH)[..., 3].max() == 0
    values[1, 3] = 1
    found = draw(values, (400, 200), SQUASH)
    rows, columns, _ = found.shape
    peak = np.unravel_index(found[..., 3].argmax(), (rows, columns))
    assert (peak[0] * 4 // rows, peak[1] * 4 // columns) == (1, 3)
    assert found[-rows // 4 :, : columns // 4, 3].max() == 0
    assert 100 < found[..., 3].max() < 255  # the photo is to be seen through it


def test_overlay_is_transparent_outside_the_seen_part() -> None:
    found = draw(np.ones((4, 4)), (400, 200), CROP)
    columns = found.shape[1]
    assert found[:, : columns // 4 - 1, 3].max() == found[:, -columns // 4 + 1 :, 3].max() == 0
    assert found[:, columns // 4 + 1 : -columns // 4 - 1, 3].min() > 0
    for size in ((1, 65_500), (65_500, 1)):  # the longest strips
        assert min(draw(np.ones((8, 8)), size, CROP).shape[:2]) == 1


@pytest.mark.parametrize("size", [(400, 200), (200, 400), (300, 300), (403, 201)])
def test_map_of_a_padded_photo_lies_right_on_the_photo(size: tuple[int, int]) -> None:
    """Each photo and its square have a bright quarter, which the overlay must show."""
    side = max(size)
    bright = np.zeros((side, side))
    left, top = (side - size[0]) // 2, (side - size[1]) // 2
    bright[side // 2 :, side // 2 :] = 1
    cells = np.asarray(Image.fromarray(bright).resize((16, 16), Image.Resampling.BOX))
    expected = bright[top : top + size[1], left : left + size[0]]
    found = draw(cells, size, PAD)[..., 3] / 180
    wanted = np.asarray(Image.fromarray(expected).resize(found.shape[::-1], Image.Resampling.BOX))
    assert np.abs(found - wanted).mean() < 0.04


def test_seen_part_of_a_padded_photo_is_its_square() -> None:
    assert find_seen_part((401, 100), PAD) == (0, -150, 401, 251)
    for strip in ((1, 65_500), (65_500, 1)):
        assert min(draw(np.ones((8, 8)), strip, PAD).shape[:2]) == 1


@settings(max_examples=100)
@given(
    size=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    crop_pct=st.floats(0.1, 1.0),
    input_size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_seen_part_is_in_the_middle_of_the_picture(
    size: tuple[int, int], crop_pct: float, input_size: tuple[int, int]
) -> None:
    update = {"crop_pct": crop_pct, "height": input_size[0], "width": input_size[1]}
    left, top, right, bottom = find_seen_part(size, CROP.model_copy(update=update))
    for start, end, length in ((left, right, size[0]), (top, bottom, size[1])):
        assert 0 <= start < end <= length
        assert abs(start - (length - end)) <= 1
