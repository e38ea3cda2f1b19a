"""Results come in order, as many works are under way as should, and an end ends them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from service.scheduling.tasks import run_in_order, run_together

pytestmark = pytest.mark.anyio


class Works:
    """Works that wait until they are let go; notes which were begun and which were cancelled."""

    def __init__(self, count: int) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.gates = [asyncio.Event() for _ in range(count)]

    async def work(self, number: int) -> int:
        self.begun.append(number)
        try:
            await self.gates[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number == 3:
            raise ZeroDivisionError
        return number


async def test_results_come_in_order_and_no_more_than_a_few_are_begun() -> None:
    works = Works(8)
    for gate in works.gates[1:]:
        gate.set()
    numbers = (0, 1, 2, 4, 5, 6, 7)
    async with aclosing(run_in_order((works.work(n) for n in numbers), 3)) as found:
        first = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert works.begun == [0, 1, 2]
        works.gates[0].set()
        assert await first == 0
        assert [result async for result in found] == [1, 2, 4, 5, 6, 7]


async def test_closing_cancels_what_is_under_way_and_begins_nothing_more() -> None:
    works = Works(6)
    works.gates[0].set()
    async with aclosing(run_in_order((works.work(n) for n in range(6)), 3)) as found:
        assert await anext(found) == 0
    assert (works.begun, works.cancelled) == ([0, 1, 2], [1, 2])


async def test_failure_is_raised_in_its_turn() -> None:
    works = Works(6)
    for gate in works.gates[:5]:
        gate.set()
    found = run_in_order((works.work(n) for n in range(6)), 3)
    assert [await anext(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        await anext(found)
    assert works.cancelled == [5]


async def test_works_of_one_request_are_all_begun_and_their_results_are_in_order() -> None:
    works = Works(3)
    together = asyncio.ensure_future(run_together(works.work(n) for n in (2, 0, 1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert works.begun == [2, 0, 1]
    for gate in works.gates:
        gate.set()
    assert await together == [2, 0, 1]


async def test_first_failure_is_raised_as_it_is_and_cancels_the_rest() -> None:
    works = Works(6)
    works.gates[3].set()
    with pytest.raises(ZeroDivisionError):
        await run_together(works.work(n) for n in range(6))
    assert sorted(works.cancelled) == [0, 1, 2, 4, 5]
