"""The screen keeps every label that the full way answers, if its error is below half the margin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.engine.heads import Wanted
from service.engine.screen import find_kept

MARGIN = 1.0


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 60),
    limit=st.none() | st.integers(1, 20),
    floor=st.none() | st.floats(-4, 4),
    own=st.booleans(),
    exclude=st.booleans(),
)
def test_every_label_of_the_answer_is_kept(  # noqa: PLR0913 - hypothesis fills them
    seed: int, size: int, limit: int | None, floor: float | None, *, own: bool, exclude: bool
) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 4, size).astype(np.float32)
    estimates = logits + random.uniform(-0.49, 0.49, size).astype(np.float32)
    floors = random.normal(floor or 0, 2, size).astype(np.float32) if own else floor
    chosen = np.flatnonzero(random.random(size) < 0.7) if exclude else None

    kept = find_kept(estimates, Wanted(floors=floors, limit=limit, chosen=chosen), MARGIN)

    among = np.arange(size) if chosen is None else chosen
    if floors is not None:
        among = among[logits[among] >= np.broadcast_to(np.float32(floors), size)[among]]
    answer = among[np.argsort(-logits[among], kind="stable")][:limit]
    assert set(answer) <= set(kept)
    assert chosen is None or set(kept) <= set(chosen)


def test_label_is_left_out_below_the_bar_by_more_than_its_scaled_margin() -> None:
    estimates = np.array([4, 3.1, 2.9, 0], np.float32)
    assert find_kept(estimates, Wanted(limit=1), MARGIN).tolist() == [0, 1]
    assert find_kept(estimates, Wanted(floors=3.5), MARGIN).tolist() == [0, 1, 2]
    half = np.full(4, 0.5, np.float32)
    assert find_kept(estimates, Wanted(scale=half, limit=1), MARGIN).tolist() == [0, 1]
    shift = np.array([0, 0, 0, 4], np.float32)
    assert find_kept(estimates, Wanted(shift=shift, limit=1), MARGIN).tolist() == [0, 1, 3]


def test_labels_that_miss_their_threshold_do_not_count_against_the_limit() -> None:
    estimates, floors = np.array([9, 1], np.float32), np.array([11, 0], np.float32)
    assert find_kept(estimates, Wanted(floors=floors, limit=1), MARGIN).tolist() == [1]


def test_infinite_unknown_and_saturated_values_lose_no_label() -> None:
    estimates = np.array([40, 60, np.inf, np.nan, -np.inf, 0], np.float32)
    assert find_kept(estimates, Wanted(limit=1), MARGIN).tolist() == [0, 1, 2, 3, 4, 5]
    known = np.array([40, 60, np.inf, 0], np.float32)
    assert find_kept(known, Wanted(limit=1), MARGIN).tolist() == [0, 1, 2]
    assert find_kept(known, Wanted(floors=np.inf), MARGIN).tolist() == [0, 1, 2]
    always = np.full(6, -np.inf, np.float32)
    assert len(find_kept(estimates, Wanted(floors=always), MARGIN)) == 6
