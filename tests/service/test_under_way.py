"""Results come in order, a few works are under way, and closing ends them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from service.under_way import run_in_order

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
