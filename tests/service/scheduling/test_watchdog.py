"""A run hangs that was seen again and again; one that ends is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import NotReady
from service.scheduling.queue import Waiting
from service.scheduling.watchdog import Runs

pytestmark = pytest.mark.anyio

SECONDS = 30.0


def make_batch() -> list[Waiting[int, int]]:
    return [Waiting(1, 0.0, 0.0, asyncio.get_running_loop().create_future())]


async def test_run_hangs_once_it_was_seen_too_often() -> None:
    runs = Runs[int, int](SECONDS)
    runs.begin(make_batch())
    assert [runs.look() for _ in range(12)] == [False] * 10 + [True] * 2


async def test_runs_that_end_never_hang_however_many_there_are() -> None:
    runs, batch = Runs[int, int](SECONDS), make_batch()
    for _ in range(100):
        run = runs.begin(batch)
        assert not runs.look()
        runs.end(run)
    assert len(runs) == 0


async def test_one_that_hangs_among_others_is_told_and_all_can_be_failed() -> None:
    runs, hung, other = Runs[int, int](0.01), make_batch(), make_batch()
    told = asyncio.Event()
    runs.begin(hung)
    runs.watch(told.set)
    runs.begin(other)
    await asyncio.wait_for(told.wait(), SECONDS)
    runs.fail(NotReady("a run hangs"))
    assert all(isinstance(batch[0].future.exception(), NotReady) for batch in (hung, other))


async def test_who_watches_no_more_is_told_nothing() -> None:
    runs, told = Runs[int, int](0.0), asyncio.Event()
    runs.begin(make_batch())
    runs.watch(told.set)
    runs.stop()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not told.is_set()
