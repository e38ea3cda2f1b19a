"""Admission in each phase, and the estimate of `Retry-After`."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Draining, NotReady
from service.scheduling.admission import Admission, DrainRate

pytestmark = pytest.mark.anyio

SECONDS = 60.0


def open_admission(workers: list[str] | None = None) -> Admission:
    """Returns an admission that fails once the list is empty."""
    admission = Admission(lambda: workers is None or bool(workers), DrainRate())
    admission.open()
    return admission


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_requests_are_refused_before_it_opens() -> None:
    admission = Admission(lambda: True, DrainRate())
    assert admission.state == "loading"
    with pytest.raises(NotReady, match="loading"), admission.admit():
        pass
    admission.open()
    with admission.admit():
        assert admission.state == "ready"


async def test_requests_are_refused_when_the_workers_have_died() -> None:
    workers = ["living"]
    admission = open_admission(workers)
    with admission.admit():
        workers.clear()
    assert admission.state == "failed"
    with pytest.raises(NotReady, match="failed"), admission.admit():
        pass


async def test_closing_refuses_requests_and_waits_for_the_admitted_ones() -> None:
    admission = open_admission()
    with admission.admit():
        with admission.admit():
            closing = asyncio.create_task(admission.close(in_seconds(SECONDS)))
            await asyncio.sleep(0)
            assert admission.state == "draining"
            with pytest.raises(Draining), admission.admit():
                pass
        await asyncio.sleep(0)
        assert not closing.done()
    await closing


async def test_closing_waits_no_longer_than_its_deadline() -> None:
    workers = ["living"]
    admission = open_admission(workers)
    with admission.admit():
        await admission.close(in_seconds(0.01))
        workers.clear()  # changes nothing now
        assert admission.state == "draining"


async def test_failed_request_is_not_waited_for() -> None:
    admission = open_admission()
    with pytest.raises(ZeroDivisionError), admission.admit():
        raise ZeroDivisionError
    await admission.close(in_seconds(SECONDS))


def answer(rate: DrainRate, start: float, count: int, each: float) -> float:
    """Notes answers at a steady pace and returns the time of the last one."""
    rate.note_start(start)
    for number in range(1, count + 1):
        rate.note_answer(start + number * each)
    return start + count * each


@pytest.mark.parametrize(("each", "seconds"), [(0.1, 6.4), (0.5, 32), (0.001, 1), (10, 60)])
def test_estimate_follows_the_pace_within_bounds(each: float, seconds: float) -> None:
    rate = DrainRate()
    now = answer(rate, 100, 50, each)
    assert rate.estimate_seconds(64, now) == pytest.approx(seconds)
    assert rate.estimate_seconds(64, now + 5) >= min(60, 1.1 * seconds)


def test_idle_time_does_not_count() -> None:
    rate = DrainRate()
    answer(rate, 0, 10, 5.0)
    now = answer(rate, 10_000, 1000, 0.1)
    assert rate.estimate_seconds(100, now) == pytest.approx(10, rel=0.01)


def test_time_so_far_counts_before_the_first_answer() -> None:
    rate = DrainRate()
    assert rate.estimate_seconds(64, 5.0) == 1
    rate.note_start(10.0)
    assert rate.estimate_seconds(64, 17.0) == 7


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1e6), max_size=300), st.floats(0, 1e6))
def test_estimate_is_always_within_bounds(items: int, steps: list[float], wait: float) -> None:
    rate, now = DrainRate(), 0.0
    rate.note_start(now)
    for step in steps:
        now += step
        rate.note_answer(now)
    assert 1 <= rate.estimate_seconds(items, now + wait) <= 60
