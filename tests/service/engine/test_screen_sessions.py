"""A screen leaves out labels, and changes no logit of those that it keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bundle.reader import Bundle
from service.engine.engine import open_engine
from service.engine.heads import (
    LABELS_PER_RUN,
    TRAINED_HEAD,
    Head,
    LogitsArray,
    ScreenedLogits,
    ScreenedQueries,
)
from service.engine.session_set import SessionSet, open_session_set
from service.engine.sessions import SessionConfig
from service.engine.tensors import QueryCache
from service.errors import BundleError
from service.labels.encoders import open_label_encoder
from tests.support.tiny_bundle import (
    QUERY_WIDTH,
    random_images,
    random_queries,
    tiny_head,
    tiny_label_encoder,
    tiny_screened_head,
    write_screened_bundle,
)

TOLERANCE = 1e-5
MATRICES = [random_queries(seed, 40 + seed) for seed in range(2)]
CONFIG = SessionConfig("cpu", "fp32")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_screened_bundle(tmp_path_factory.mktemp("screened"))


@pytest.fixture(scope="module")
def sessions(bundle: Bundle) -> SessionSet:
    return open_session_set(bundle, CONFIG)


def ask(which: int, floor: float, wanted: int, scale: float = 1.0) -> ScreenedQueries:
    queries = MATRICES[which]
    ranks = [np.full(len(queries), value, np.float32) for value in (scale, -scale * floor)]
    return ScreenedQueries(queries, {"projected": queries}, *ranks, wanted)


def find_needed(logits: LogitsArray, floor: float, wanted: int) -> set[int]:
    count = max(wanted, int((logits >= floor).sum()))
    return set(logits.argsort()[::-1][:count].tolist())


heads = st.one_of(
    st.sampled_from(["plain", "trained"]),
    st.tuples(st.integers(0, 1), st.floats(-1, 12), st.integers(1, 50)),
)


@pytest.mark.parametrize("device", [None, "cpu"])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    names=st.lists(st.lists(heads, max_size=3, unique=True), min_size=1, max_size=4),
)
def test_kept_labels_have_the_logits_of_the_full_way(
    sessions: SessionSet,
    device: str | None,
    seed: int,
    names: list[list[str | tuple[int, float, int]]],
) -> None:
    images = random_images(seed, len(names))
    made: dict[object, Head] = {"plain": MATRICES[0], "trained": TRAINED_HEAD}
    made |= {name: ask(*name) for row in names for name in row if not isinstance(name, str)}
    asked: list[list[Head]] = [[made[name] for name in row] for row in names]
    full: list[list[Head]] = [
        [head.queries if isinstance(head, ScreenedQueries) else head for head in row]
        for row in asked
    ]
    # The trained head of this bundle has no memory.
    explained = [row for row in range(0, len(names), 2) if "trained" not in names[row]]
    cache = None if device is None else QueryCache(device)
    tried = replace(sessions, query_cache=cache)
    results = tried.run(images, asked, explained)
    expected = sessions.run(images, full, explained)
    for row, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        for number, name in enumerate(names[row]):
            logits, all_logits = result.logits[number], wanted.logits[number]
            assert not isinstance(all_logits, ScreenedLogits)
            if isinstance(logits, ScreenedLogits):
                assert not isinstance(name, str)
                _, floor, count = name
                positions = logits.positions.tolist()
                assert positions == sorted(positions)
                lowest = all_logits[positions].min()
                # Others may be kept for them only if they have the same logit.
                for missed in find_needed(all_logits, floor, count) - set(positions):
                    assert all_logits[missed] == pytest.approx(lowest, abs=TOLERANCE)
                logits, all_logits = logits.logits, all_logits[positions]
            else:
                assert isinstance(name, str)
            np.testing.assert_allclose(logits, all_logits, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(result.memories, wanted.memories, atol=TOLERANCE, rtol=0)


def test_photo_keeps_what_it_needs_itself(sessions: SessionSet) -> None:
    images = random_images(3, 4)
    head = ask(0, 2.0, 1)
    together = [result.logits[0] for result in sessions.run(images, [[head]] * 4)]
    for row, scored in enumerate(together):
        (alone,) = sessions.run(images[row : row + 1], [[head]])
        assert isinstance(scored, ScreenedLogits)
        assert isinstance(alone.logits[0], ScreenedLogits)
        assert scored.positions.tolist() == alone.logits[0].positions.tolist()
    assert len({len(row.positions) for row in together if isinstance(row, ScreenedLogits)}) > 1


def test_photo_that_needs_more_than_the_screen_scores_takes_the_full_way(tmp_path: Path) -> None:
    bundle = write_screened_bundle(tmp_path, screened_head=tiny_screened_head(most=3))
    sessions, images = open_session_set(bundle, CONFIG), random_images(0, 2)
    few, many = ask(0, 30.0, 3), ask(0, 30.0, 4)
    results = sessions.run(images, [[few], [many]])
    expected = sessions.run(images, [[MATRICES[0]]] * 2)
    assert isinstance(results[0].logits[0], ScreenedLogits)
    assert len(results[0].logits[0].positions) == 3
    np.testing.assert_array_equal(results[1].logits[0], expected[1].logits[0])


def warm_up(bundle: Bundle) -> None:
    encoder = open_label_encoder(bundle, 1)
    assert encoder is not None
    open_engine(bundle, device="cpu").warm_up(encoder.make_blank)


def test_warm_up_runs_the_screen(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    run = SessionSet._run_screened

    def note(self: SessionSet, *arguments: Any) -> Any:
        sizes.append(len(arguments[1]))
        return run(self, *arguments)

    monkeypatch.setattr(SessionSet, "_run_screened", note)
    warm_up(bundle)
    assert set(sizes) == {1, LABELS_PER_RUN}


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ({"screened_head": tiny_head()}, "screened_head has tokens"),
        ({"screened_head": b"no graph"}, "not a usable ONNX graph"),
        ({"screened_head": tiny_screened_head(key_width=QUERY_WIDTH + 2)}, "not a usable|do not"),
        ({"label_encoder": tiny_label_encoder()}, "label_encoder returns no keys"),
    ],
)
def test_damaged_screen_is_refused(tmp_path: Path, graphs: dict[str, bytes], reason: str) -> None:
    bundle = write_screened_bundle(tmp_path, **graphs)
    with pytest.raises(BundleError, match=reason):
        warm_up(bundle)
