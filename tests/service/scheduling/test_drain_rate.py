"""The drain rate: what it tells follows from what was answered since the service was idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduling.drain_rate import DrainRate


def answer(rate: DrainRate, start: float, count: int, each: float) -> float:
    """Notes answers at a steady pace and returns the time of the last one."""
    rate.note_start(start)
    for number in range(1, count + 1):
        rate.note_answer(start + number * each)
    return start + count * each


@pytest.mark.parametrize(("each", "seconds"), [(0.1, 6.4), (0.5, 32), (0.001, 1), (10, 60)])
def test_estimate_is_what_the_pace_says_within_bounds(each: float, seconds: float) -> None:
    rate = DrainRate()
    now = answer(rate, 100, 50, each)
    assert rate.estimate_seconds(64, now) == pytest.approx(seconds)


def test_long_past_and_idle_time_do_not_count() -> None:
    rate = DrainRate()
    answer(rate, 0, 10, 5.0)
    now = answer(rate, 10_000, 1000, 0.1)
    assert rate.estimate_seconds(100, now) == pytest.approx(10, rel=0.01)


def test_standstill_makes_the_estimate_grow() -> None:
    rate = DrainRate()
    now = answer(rate, 0, 10, 0.1)
    assert rate.estimate_seconds(10, now) < rate.estimate_seconds(10, now + 5)


def test_before_the_first_answer_the_time_so_far_counts() -> None:
    rate = DrainRate()
    assert rate.estimate_seconds(64, 5.0) == 1
    rate.note_start(10.0)
    assert rate.estimate_seconds(64, 17.0) == 7


@given(
    st.integers(0, 10_000),
    st.lists(st.floats(0, 1e6), max_size=300),
    st.floats(0, 1e6),
)
def test_estimate_is_always_within_bounds(items: int, steps: list[float], wait: float) -> None:
    rate, now = DrainRate(), 0.0
    rate.note_start(now)
    for step in steps:
        now += step
        rate.note_answer(now)
    assert 1 <= rate.estimate_seconds(items, now + wait) <= 60
