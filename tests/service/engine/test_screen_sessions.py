"""A screen leaves out labels, and changes no logit of those that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.reader import Bundle
from service.engine import session_set
from service.engine.engine import open_engine
from service.engine.heads import Head, LogitsArray, ScreenedQueries, Wanted
from service.engine.screen import find_kept
from service.engine.session_set import SessionSet, open_session_set
from service.engine.sessions import SessionConfig
from service.errors import BundleError
from service.images.decode import PixelArray
from tests.support.tiny_bundle import (
    KEY_WIDTH,
    QUERY_WIDTH,
    SCREEN,
    random_images,
    random_queries,
    tiny_head,
    tiny_screen,
    write_screened_bundle,
)

TOLERANCE = 1e-5
MATRICES = [random_queries(seed, 40 + seed) for seed in range(2)]
KEYS = [np.tile(queries, 2) for queries in MATRICES]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_screened_bundle(tmp_path_factory.mktemp("screened"))


@pytest.fixture(scope="module")
def sessions(bundle: Bundle) -> SessionSet:
    return open_session_set(bundle, SessionConfig("cpu", "fp32"))


def estimate(sessions: SessionSet, images: PixelArray, keys: NDArray[np.float32]) -> LogitsArray:
    tokens = sessions.encoder.run(["tokens"], {"images": images})[0]
    queries = keys[:, :QUERY_WIDTH].T
    most = np.maximum((tokens[:, ::2] @ queries).max(axis=1), tokens.mean(axis=1) @ queries)
    return np.asarray(most - 1, np.float32)


def ask(which: int, **wanted: float | int) -> ScreenedQueries:
    return ScreenedQueries(MATRICES[which], KEYS[which], Wanted(**wanted))  # type: ignore[arg-type]


heads = st.one_of(
    st.sampled_from(["plain", "trained"]),
    st.tuples(st.integers(0, 1), st.floats(-1, 12), st.none() | st.integers(1, 5)),
)


@pytest.mark.parametrize("most_shared", [0.0, 1.5, 99.0])
@pytest.mark.parametrize("device", [None, "cpu"])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    names=st.lists(st.lists(heads, max_size=3, unique=True), min_size=1, max_size=4),
    step=st.sampled_from([1, 4, 64]),
    per_run=st.sampled_from([7, 1024]),
)
def test_kept_labels_have_the_logits_of_the_full_way(  # noqa: PLR0913, PLR0917 - hypothesis
    sessions: SessionSet,
    most_shared: float,
    device: str | None,
    seed: int,
    names: list[list[str | tuple[int, float, int | None]]],
    step: int,
    per_run: int,
) -> None:
    images = random_images(seed, len(names))
    made: dict[object, Head] = {"plain": MATRICES[0], "trained": None}
    for each in {name for row in names for name in row} - made.keys():
        which, floor, limit = each  # type: ignore[misc]
        made[each] = ScreenedQueries(
            MATRICES[which], KEYS[which], Wanted(floors=floor, limit=limit)
        )
    asked: list[list[Head]] = [[made[name] for name in row] for row in names]
    full: list[list[Head]] = [
        [head.queries if isinstance(head, ScreenedQueries) else head for head in row]
        for row in asked
    ]
    # The trained head of this bundle has no memory.
    explained = [row for row in range(0, len(names), 2) if "trained" not in names[row]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_set, "_MOST_SHARED", most_shared)
        patch.setattr(session_set, "LABELS_PER_RUN", per_run)
        tried = replace(sessions, token_device=device, kept_step=step)
        results = tried.run(images, asked, explained)
    expected = sessions.run(images, full, explained)
    for row, (found, wanted) in enumerate(zip(results, expected, strict=True)):
        for place, head in enumerate(asked[row]):
            logits, kept = wanted.logits[place], found.kept[place]
            if isinstance(head, ScreenedQueries):
                estimates = estimate(sessions, images[row : row + 1], head.keys)[0]
                assert kept is not None
                assert kept.tolist() == find_kept(estimates, head.wanted, SCREEN.margin).tolist()
                logits = logits[kept]
            else:
                assert kept is None
            np.testing.assert_allclose(found.logits[place], logits, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(found.memories, wanted.memories, atol=TOLERANCE, rtol=0)


def count_runs(monkeypatch: pytest.MonkeyPatch, found: list[tuple[int, int]]) -> None:
    run_head = SessionSet._run_head

    def note(
        self: SessionSet, tokens: NDArray[np.float32], head: Head, outputs: list[str]
    ) -> object:
        found.append((len(tokens), 0 if head is None else len(head)))
        return run_head(self, tokens, head, outputs)

    monkeypatch.setattr(SessionSet, "_run_head", note)


@pytest.mark.parametrize(
    ("chosen", "runs"),
    [
        ([[0, 1], [1, 2]], [(2, 3)]),  # 3 labels are at most 1.5 times 2
        ([[0, 1], [2, 3]], [(1, 2), (1, 2)]),
        ([[0, 1], []], [(1, 2)]),
        ([[], []], []),
    ],
)
def test_photos_share_a_run_if_they_keep_much_the_same_labels(
    sessions: SessionSet,
    monkeypatch: pytest.MonkeyPatch,
    chosen: Sequence[list[int]],
    runs: list[tuple[int, int]],
) -> None:
    found: list[tuple[int, int]] = []
    count_runs(monkeypatch, found)
    asked: list[list[Head]] = [
        [ScreenedQueries(MATRICES[0], KEYS[0], Wanted(chosen=np.array(some, np.intp)))]
        for some in chosen
    ]
    results = sessions.run(random_images(0, 2), asked)
    assert found == runs
    assert [len(each.logits[0]) for each in results] == [len(some) for some in chosen]


def test_photo_without_kept_labels_has_a_memory_if_it_is_explained(sessions: SessionSet) -> None:
    images = random_images(0, 1)
    (found,) = sessions.run(images, [[ask(0, floors=30.0)]], explained=[0])
    (full,) = sessions.run(images, [[MATRICES[0]]], explained=[0])
    assert found.logits[0].shape == (0,)
    assert found.kept[0] is not None
    assert found.kept[0].tolist() == []
    np.testing.assert_allclose(found.memories, full.memories, atol=TOLERANCE, rtol=0)


def test_warm_up_runs_the_screen(bundle: Bundle) -> None:
    open_engine(bundle, device="cpu").warm_up(QUERY_WIDTH, KEY_WIDTH)


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ({"screen": tiny_head()}, "screen has tokens"),
        ({"screen_photo": tiny_head()}, "screen_photo has logits"),
        ({"screen": b"no graph"}, "not a usable ONNX graph"),
        ({"screen": tiny_screen(copies=2)}, "gave estimates of shape"),
        ({"screen": tiny_screen(key_width=KEY_WIDTH + 2)}, "do not run|not a usable"),
    ],
)
def test_damaged_screen_is_refused(tmp_path: Path, graphs: dict[str, bytes], reason: str) -> None:
    bundle = write_screened_bundle(tmp_path, **graphs)
    with pytest.raises(BundleError, match=reason):
        open_engine(bundle, device="cpu").warm_up(QUERY_WIDTH, KEY_WIDTH)
