"""The line keeps its order and its bounds, and hands out nothing that nobody waits for."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.errors import Draining, QueueFull
from service.waiting import BatchSizes, Waiting, WaitingLine, fail_all

pytestmark = pytest.mark.anyio

ANY_SIZE = BatchSizes(9, 9)
NEVER = float("inf")
SECONDS = 30.0


def make_line(
    size: int = 5,
    *,
    batch_sizes: BatchSizes = ANY_SIZE,
    short_below: int = 0,
    max_wait_seconds: float = 0.0,
) -> WaitingLine[int, int]:
    return WaitingLine[int, int](
        size, batch_sizes, short_below=short_below, max_wait_seconds=max_wait_seconds
    )


def items_of(batch: list[Waiting[int, int]]) -> list[int]:
    return [waiting.item for waiting in batch]


async def test_items_leave_in_the_order_of_arrival() -> None:
    line = make_line(batch_sizes=BatchSizes(3, 3))
    for item in range(5):
        line.join(item, NEVER)

    assert items_of(line.take()) == [0, 1, 2]
    assert items_of(line.take()) == [3, 4]
    assert len(line) == 0


async def test_batches_of_a_short_line_are_small() -> None:
    line = make_line(9, batch_sizes=BatchSizes(4, 2), short_below=6)
    for item in range(7):
        line.join(item, NEVER)

    taken = [items_of(line.take()) for _ in range(3)]

    assert taken == [[0, 1, 2, 3], [4, 5], [6]]


async def test_who_waits_for_full_batches_gets_no_small_ones() -> None:
    line = make_line(batch_sizes=BatchSizes(4, 2), short_below=9, max_wait_seconds=NEVER)
    for item in range(4):
        line.join(item, NEVER)

    assert items_of(line.take()) == [0, 1, 2, 3]


async def test_closed_line_is_emptied_in_full_batches() -> None:
    line = make_line(batch_sizes=BatchSizes(4, 2), short_below=9)
    for item in range(5):
        line.join(item, NEVER)

    line.close()

    assert items_of(line.take()) == [0, 1, 2, 3]


async def test_item_whose_client_left_is_not_taken() -> None:
    line = make_line()
    waiting = [line.join(item, NEVER) for item in range(3)]

    waiting[1].future.cancel()

    assert items_of(line.take()) == [0, 2]


async def test_item_past_its_deadline_is_not_taken() -> None:
    line = make_line()
    now = asyncio.get_running_loop().time()
    for item, deadline in enumerate((NEVER, now, NEVER)):
        line.join(item, deadline)

    assert items_of(line.take()) == [0, 2]


async def test_taker_waits_for_the_first_item() -> None:
    line = make_line()
    taking = asyncio.create_task(asyncio.to_thread(line.take))
    await asyncio.sleep(0.01)
    assert not taking.done()

    line.join(7, NEVER)

    assert items_of(await taking) == [7]


async def test_closed_line_gives_what_it_has_and_then_lets_the_takers_go() -> None:
    line = make_line(batch_sizes=BatchSizes(2, 2), max_wait_seconds=SECONDS)
    waits = asyncio.create_task(asyncio.to_thread(line.take))
    line.join(1, NEVER)

    line.close()

    assert items_of(await waits) == [1]
    assert line.take() == []


async def test_taker_waits_until_those_who_were_answered_are_back() -> None:
    line = make_line()
    line.expect(3, SECONDS)
    taking = asyncio.create_task(asyncio.to_thread(line.take))
    for item in (1, 2):
        line.join(item, NEVER)
    await asyncio.sleep(0.01)
    assert not taking.done()

    line.join(3, NEVER)

    assert items_of(await taking) == [1, 2, 3]


async def test_taker_waits_no_longer_than_it_is_worth() -> None:
    line = make_line()
    line.join(1, NEVER)
    line.expect(3, 0.02)
    started = time.perf_counter()

    assert items_of(line.take()) == [1]
    assert time.perf_counter() - started >= 0.02

    line.join(2, NEVER)
    assert items_of(line.take()) == [2]  # the time is over for this one too


@pytest.mark.parametrize("answered", [0, 1])
async def test_lone_client_is_not_waited_for(answered: int) -> None:
    line = make_line()
    line.expect(answered, SECONDS)
    line.join(1, NEVER)

    assert items_of(line.take()) == [1]


async def test_full_batch_waits_for_nobody() -> None:
    line = make_line(batch_sizes=BatchSizes(2, 2))
    line.expect(5, SECONDS)
    for item in (1, 2):
        line.join(item, NEVER)

    assert items_of(line.take()) == [1, 2]


async def test_who_came_back_is_not_waited_for_again() -> None:
    line = make_line()
    line.expect(2, SECONDS)
    for item in (1, 2):
        line.join(item, NEVER)
    assert items_of(line.take()) == [1, 2]

    line.join(3, NEVER)

    assert items_of(line.take()) == [3]


async def test_closed_line_waits_for_nobody() -> None:
    line = make_line()
    line.expect(3, SECONDS)
    line.join(1, NEVER)
    taking = asyncio.create_task(asyncio.to_thread(line.take))

    line.close()

    assert items_of(await taking) == [1]


class Unprintable:
    """A photo, say: its text would be four times its size."""

    def __repr__(self) -> str:
        raise AssertionError("an item is printed")


async def test_item_that_was_taken_may_leave_and_is_not_printed() -> None:
    line = WaitingLine[Unprintable, int](5, BatchSizes(1, 1), short_below=0, max_wait_seconds=0)
    taken, stays = (line.join(Unprintable(), NEVER) for _ in range(2))
    assert line.take() == [taken]

    line.leave(taken)

    assert line.take() == [stays]


async def test_full_line_refuses_until_one_leaves() -> None:
    line = make_line(1)
    first = line.join(1, NEVER)
    with pytest.raises(QueueFull):
        line.join(2, NEVER)

    line.leave(first)
    line.leave(first)  # once more changes nothing

    assert items_of([line.join(3, NEVER)]) == [3]
    assert len(line) == 1


async def test_failing_the_line_empties_it_and_spares_who_is_done() -> None:
    line = make_line(2)
    left, stays = line.join(1, NEVER), line.join(2, NEVER)
    left.future.cancel()

    line.fail(Draining("stopping"))
    fail_all([stays], Draining("again"))

    assert len(line) == 0
    assert left.future.cancelled()
    assert str(stays.future.exception()) == "stopping"
