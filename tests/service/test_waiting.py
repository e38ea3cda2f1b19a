"""The line keeps its order and its bounds, and hands out nothing that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import Draining, QueueFull
from service.waiting import Waiting, WaitingLine, fail_all

pytestmark = pytest.mark.anyio

NEVER = float("inf")


def items_of(batch: list[Waiting[int, int]]) -> list[int]:
    return [waiting.item for waiting in batch]


async def test_items_leave_in_the_order_of_arrival() -> None:
    line = WaitingLine[int, int](5)
    for item in range(5):
        line.join(item, NEVER)

    assert line.oldest.item == 0
    assert items_of(line.take(2)) == [0, 1]
    assert items_of(line.take(9)) == [2, 3, 4]
    assert len(line) == 0


async def test_item_whose_client_left_is_not_taken() -> None:
    line = WaitingLine[int, int](3)
    waiting = [line.join(item, NEVER) for item in range(3)]

    waiting[1].future.cancel()

    assert items_of(line.take(2)) == [0, 2]


async def test_item_past_its_deadline_is_not_taken() -> None:
    line = WaitingLine[int, int](3)
    now = asyncio.get_running_loop().time()
    for item, deadline in enumerate((NEVER, now, NEVER)):
        line.join(item, deadline)

    assert items_of(line.take(2)) == [0, 2]


async def test_full_line_refuses_until_one_leaves() -> None:
    line = WaitingLine[int, int](1)
    first = line.join(1, NEVER)
    with pytest.raises(QueueFull):
        line.join(2, NEVER)

    line.leave(first)
    line.leave(first)  # once more changes nothing

    assert items_of([line.join(3, NEVER)]) == [3]
    assert len(line) == 1


async def test_failing_the_line_empties_it_and_spares_who_is_done() -> None:
    line = WaitingLine[int, int](2)
    left, stays = line.join(1, NEVER), line.join(2, NEVER)
    left.future.cancel()

    line.fail(Draining("stopping"))
    fail_all([stays], Draining("again"))

    assert len(line) == 0
    assert left.future.cancelled()
    assert str(stays.future.exception()) == "stopping"
