"""The line keeps its order and its bounds, and hands out nothing that nobody waits for."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.errors import Draining, QueueFull
from service.scheduling.queue import BatchSizes, Waiting, WaitingLine, fail_all

pytestmark = pytest.mark.anyio

ANY_SIZE = BatchSizes(9, 9)
NEVER = float("inf")
SECONDS = 30.0
# A line that waits for so long raises at once: time has no room for it.
ENDLESS = float("inf")


def make_line(
    size: int = 5,
    *,
    batch_sizes: BatchSizes = ANY_SIZE,
    workers: int = 1,
    max_wait_seconds: float = 0.0,
) -> WaitingLine[int, int]:
    return WaitingLine[int, int](
        size, batch_sizes, workers=workers, max_wait_seconds=max_wait_seconds
    )


def answer(line: WaitingLine[int, int], count: int, return_seconds: float) -> None:
    """Has a worker take so many items and finish them."""
    for _ in range(count):
        line.join(0, NEVER)
    assert len(line.take()) == count
    line.finish(count, return_seconds)


def items_of(batch: list[Waiting[int, int]]) -> list[int]:
    return [waiting.item for waiting in batch]


async def test_items_leave_in_the_order_of_arrival() -> None:
    line = make_line(batch_sizes=BatchSizes(3, 3))
    for item in range(5):
        line.join(item, NEVER)

    assert items_of(line.take()) == [0, 1, 2]
    assert items_of(line.take()) == [3, 4]
    assert len(line) == 0


@pytest.mark.parametrize(
    ("items", "size"), [(1, 1), (2, 2), (4, 2), (8, 2), (9, 3), (11, 3), (12, 4), (40, 4)]
)
async def test_each_of_two_workers_leaves_as_many_as_it_takes(items: int, size: int) -> None:
    line = make_line(40, batch_sizes=BatchSizes(4, 2), workers=2)
    for item in range(items):
        line.join(item, NEVER)

    assert len(line.take()) == size


async def test_batches_keep_their_size_while_items_are_run_and_their_clients_come_back() -> None:
    line = make_line(9, batch_sizes=BatchSizes(4, 2), workers=2)
    for item in range(9):
        line.join(item, NEVER)
    sizes = [len(line.take()), len(line.take())]

    for _ in range(6):  # the worker with the older batch ends it and takes the next one
        line.finish(sizes[-2], 0)
        sizes.append(len(line.take()))
        for item in range(sizes[-3]):
            line.join(item, NEVER)

    assert sizes == [3] * 8


async def test_items_that_are_finished_count_no_more() -> None:
    line = make_line(9, batch_sizes=BatchSizes(9, 2))
    for _ in range(9):
        answer(line, 1, 0)
    for item in range(8):
        line.join(item, NEVER)

    assert len(line.take()) == 4  # of eight that wait, and one who may be back


async def test_who_waits_for_full_batches_gets_no_small_ones() -> None:
    line = make_line(batch_sizes=BatchSizes(4, 2), workers=2, max_wait_seconds=NEVER)
    for item in range(4):
        line.join(item, NEVER)

    assert items_of(line.take()) == [0, 1, 2, 3]


async def test_closed_line_is_emptied_in_full_batches() -> None:
    line = make_line(batch_sizes=BatchSizes(4, 2), workers=2)
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
    answer(line, 3, SECONDS)
    taking = asyncio.create_task(asyncio.to_thread(line.take))
    for item in (1, 2):
        line.join(item, NEVER)
    await asyncio.sleep(0.01)
    assert not taking.done()

    line.join(3, NEVER)

    assert items_of(await taking) == [1, 2, 3]


async def test_taker_waits_no_longer_than_it_is_worth() -> None:
    line = make_line()
    answer(line, 3, 0.02)
    started = time.perf_counter()
    line.join(1, NEVER)

    assert items_of(line.take()) == [1]
    assert time.perf_counter() - started >= 0.02

    line.join(2, NEVER)
    assert items_of(line.take()) == [2]  # the time is over for this one too


async def test_lone_client_is_not_waited_for() -> None:
    line = make_line()
    answer(line, 1, ENDLESS)
    line.join(1, NEVER)

    assert items_of(line.take()) == [1]


async def test_each_of_two_takers_waits_for_its_share_of_those_who_were_answered() -> None:
    line = make_line(workers=2)
    answer(line, 4, SECONDS)
    taking = [asyncio.create_task(asyncio.to_thread(line.take)) for _ in range(2)]

    for item in (1, 2):
        line.join(item, NEVER)
    (first,), _ = await asyncio.wait(
        taking, timeout=SECONDS / 2, return_when=asyncio.FIRST_COMPLETED
    )

    assert items_of(first.result()) == [1]
    line.close()
    assert sorted(len(batch) for batch in await asyncio.gather(*taking)) == [1, 1]


async def test_full_batch_waits_for_nobody() -> None:
    line = make_line(batch_sizes=BatchSizes(2, 2), workers=2)
    answer(line, 2, ENDLESS)
    for item in (1, 2):
        line.join(item, NEVER)

    assert items_of(line.take()) == [1, 2]


async def test_who_came_back_is_not_waited_for_again() -> None:
    line = make_line()
    answer(line, 2, ENDLESS)
    for item in (1, 2):
        line.join(item, NEVER)
    assert items_of(line.take()) == [1, 2]

    line.join(3, NEVER)

    assert items_of(line.take()) == [3]


async def test_closed_line_waits_for_nobody() -> None:
    line = make_line()
    answer(line, 3, SECONDS)
    line.join(1, NEVER)
    taking = asyncio.create_task(asyncio.to_thread(line.take))

    line.close()

    assert items_of(await taking) == [1]


class Unprintable:
    """A photo, say: its text would be four times its size."""

    def __repr__(self) -> str:
        raise AssertionError("an item is printed")


async def test_item_that_was_taken_may_leave_and_is_not_printed() -> None:
    line = WaitingLine[Unprintable, int](5, BatchSizes(1, 1), workers=1, max_wait_seconds=0)
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
