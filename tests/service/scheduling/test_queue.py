"""The queue keeps its order and its bound, and drops items without a client."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from service.caller import CALLER, Caller
from service.errors import Draining, QueueFull
from service.scheduling.queue import (
    LONG_WEIGHT,
    BatchQueue,
    BatchSizes,
    DrainRate,
    QueuedItem,
    fail_items,
)

pytestmark = pytest.mark.anyio

ANY_SIZE = BatchSizes(9, 9)
NEVER = float("inf")
SECONDS = 30.0
# A queue that waits for so long raises at once: time has no room for it.
ENDLESS = float("inf")


def make_queue(
    size: int = 5, *, batch_sizes: BatchSizes = ANY_SIZE, **options: Any
) -> BatchQueue[int, int]:
    return BatchQueue[int, int](size, batch_sizes, **options)


def answer(queue: BatchQueue[int, int], count: int, return_seconds: float) -> None:
    """Has a worker take so many items and finish them."""
    put_all(queue, range(count))
    assert len(queue.take()) == count
    queue.finish(count, return_seconds)


def put_all(queue: BatchQueue[int, int], items: Iterable[int]) -> list[QueuedItem[int, int]]:
    return [queue.put(item, NEVER) for item in items]


def items_of(batch: list[QueuedItem[int, int]]) -> list[int]:
    return [waiting.item for waiting in batch]


async def test_callers_take_turns() -> None:
    queue = make_queue(8, batch_sizes=BatchSizes(3, 3))

    async def ask(*items: int) -> list[QueuedItem[int, int]]:
        CALLER.set(Caller())
        return put_all(queue, items)

    for items in ((1, 2, 3, 4), (5,), (6, 7)):
        last = await asyncio.create_task(ask(*items))
    queue.remove(last[-1])
    assert items_of(queue.take()) == [1, 5, 6]
    assert items_of(queue.take()) == [2, 3, 4]


async def test_heavy_items_make_a_batch_short() -> None:
    queue = make_queue(8, batch_sizes=BatchSizes(4, 4))
    for item, weight in enumerate((2, 2, 1, 1, 1, 1, 5, 4)):
        queue.put(item, NEVER, weight)
    assert [items_of(queue.take()) for _ in range(4)] == [[0, 1], [2, 3, 4, 5], [6], [7]]


async def test_long_item_runs_alone_in_turn_with_others_and_leaves_them_a_worker() -> None:
    queue = make_queue(4, workers=2)
    for item in (1, 2):
        queue.put(item, NEVER, LONG_WEIGHT + 1)
    put_all(queue, [3, 4])
    assert queue.is_full
    assert items_of(queue.take()) == [1]
    assert items_of(queue.take()) == [3, 4]
    put_all(queue, [5])
    assert items_of(queue.take()) == [5]
    queue.finish(1, 0, is_long=True)
    put_all(queue, [6])
    queue.close()
    assert [items_of(queue.take()) for _ in range(2)] == [[2], [6]]
    queue.finish(1, 0, is_long=True)
    queue.put(7, 0.0, LONG_WEIGHT + 1)  # has expired
    assert queue.take() == []


@pytest.mark.parametrize(
    ("items", "size"), [(1, 1), (2, 2), (4, 2), (8, 2), (9, 3), (11, 3), (12, 4), (40, 4)]
)
async def test_batch_leaves_as_many_items_for_the_other_worker(items: int, size: int) -> None:
    queue = make_queue(40, batch_sizes=BatchSizes(4, 2), workers=2)
    put_all(queue, range(items))

    assert len(queue.take()) == size


async def test_batches_keep_their_size_while_answered_clients_come_back() -> None:
    queue = make_queue(8, batch_sizes=BatchSizes(4, 2), workers=2)
    put_all(queue, range(9))
    sizes = [len(queue.take()), len(queue.take())]

    for _ in range(6):  # the worker with the older batch ends it and takes the next one
        queue.finish(sizes[-2], 0)
        sizes.append(len(queue.take()))
        put_all(queue, range(sizes[-3]))

    assert sizes == [3] * 8


async def test_finished_items_do_not_count_for_the_batch_size() -> None:
    queue = make_queue(8, batch_sizes=BatchSizes(9, 2))
    for _ in range(9):
        answer(queue, 1, 0)
    put_all(queue, range(8))

    assert len(queue.take()) == 4  # of eight that wait, and one client that may come back


@pytest.mark.parametrize(
    ("wait", "is_closed", "items"), [(NEVER, False, 4), (0.0, True, 5)], ids=["wait", "closed"]
)
async def test_batches_are_full_when_a_wait_is_set_or_the_queue_is_closed(
    wait: float, is_closed: bool, items: int
) -> None:
    queue = make_queue(batch_sizes=BatchSizes(4, 2), workers=2, max_wait_seconds=wait)
    put_all(queue, range(items))
    if is_closed:
        queue.close()

    assert items_of(queue.take()) == [0, 1, 2, 3]


async def test_item_past_its_deadline_or_without_a_client_is_not_taken() -> None:
    queue = make_queue()
    now = asyncio.get_running_loop().time()
    waiting = [
        queue.put(item, deadline) for item, deadline in enumerate((NEVER, now, NEVER, NEVER))
    ]

    waiting[2].future.cancel()

    assert items_of(queue.take()) == [0, 3]


@pytest.mark.parametrize("answered", [0, 3], ids=["first item", "answered clients"])
async def test_worker_waits_for_the_first_item_or_the_next_items_of_answered_clients(
    answered: int,
) -> None:
    queue = make_queue()
    if answered:
        answer(queue, answered, SECONDS)
    taking = asyncio.create_task(asyncio.to_thread(queue.take))
    put_all(queue, range(1, answered))
    await asyncio.sleep(0.01)
    assert not taking.done()

    queue.put(7, NEVER)

    assert items_of(await taking) == [*range(1, answered), 7]


@pytest.mark.parametrize(("wait", "answered"), [(SECONDS, 0), (0.0, 3)])
async def test_closed_queue_returns_its_items_at_once_and_then_ends_the_workers(
    wait: float, answered: int
) -> None:
    queue = make_queue(max_wait_seconds=wait)
    if answered:
        answer(queue, answered, SECONDS)
    waits = asyncio.create_task(asyncio.to_thread(queue.take))
    queue.put(1, NEVER)

    queue.close()

    assert items_of(await waits) == [1]
    assert queue.take() == []


@pytest.mark.parametrize(("wait", "answered"), [(0.02, 0), (0.0, 3)])
async def test_worker_waits_no_longer_than_the_setting_or_the_return_time(
    wait: float, answered: int
) -> None:
    queue = make_queue(max_wait_seconds=wait)
    if answered:
        answer(queue, answered, 0.02)
    started = time.perf_counter()
    queue.put(1, NEVER)

    assert items_of(queue.take()) == [1]
    assert time.perf_counter() - started >= 0.02


@pytest.mark.parametrize(("count", "most"), [(1, 9), (2, 2)], ids=["lone client", "full batch"])
async def test_worker_does_not_wait_for_a_lone_client_or_when_the_batch_is_full(
    count: int, most: int
) -> None:
    queue = make_queue(batch_sizes=BatchSizes(most, most), workers=count)
    answer(queue, count, ENDLESS)
    put_all(queue, range(count))

    assert items_of(queue.take()) == [*range(count)]


async def test_each_of_two_workers_waits_for_its_share_of_answered_clients() -> None:
    queue = make_queue(workers=2)
    answer(queue, 4, SECONDS)
    taking = [asyncio.create_task(asyncio.to_thread(queue.take)) for _ in range(2)]

    put_all(queue, (1, 2))
    (first,), _ = await asyncio.wait(
        taking, timeout=SECONDS / 2, return_when=asyncio.FIRST_COMPLETED
    )

    assert items_of(first.result()) == [1]
    queue.close()
    assert sorted(len(batch) for batch in await asyncio.gather(*taking)) == [1, 1]


async def test_worker_does_not_wait_again_for_clients_that_came_back() -> None:
    queue = make_queue()
    answer(queue, 2, ENDLESS)
    put_all(queue, (1, 2))
    assert items_of(queue.take()) == [1, 2]

    queue.put(3, NEVER)

    assert items_of(queue.take()) == [3]


class Unprintable:
    """A photo, say: its text would be four times its size."""

    def __repr__(self) -> str:
        raise AssertionError("an item is printed")


async def test_taken_item_can_be_removed_and_is_not_printed() -> None:
    queue = BatchQueue[Unprintable, int](5, BatchSizes(1, 1))
    taken, stays = (queue.put(Unprintable(), NEVER) for _ in range(2))
    assert queue.take() == [taken]

    queue.remove(taken)

    assert queue.take() == [stays]


async def test_failing_the_queue_empties_it_and_spares_done_items() -> None:
    queue = make_queue(2)
    left, stays = queue.put(1, NEVER), queue.put(2, NEVER)
    left.future.cancel()

    queue.fail(Draining("stopping"))
    fail_items([stays], Draining("again"))

    assert len(queue) == 0
    assert left.future.cancelled()
    assert str(stays.future.exception()) == "stopping"


async def test_queue_is_full_with_items_in_side_threads_until_one_is_removed() -> None:
    queue = make_queue(2, count_side_items=lambda: 1)
    queue.check_room()
    first = queue.put(1, NEVER)
    assert (len(queue), queue.places_taken, queue.is_full) == (1, 2, True)
    with pytest.raises(QueueFull):
        queue.check_room()

    queue.remove(first)
    queue.remove(first)  # once more changes nothing

    queue.check_room()
    assert (len(queue), queue.is_full) == (0, False)


async def test_refusal_carries_the_time_after_which_there_may_be_room() -> None:
    queue, started = make_queue(2, count_side_items=lambda: 2), time.perf_counter()
    queue.drain_rate.note_start(started - 20)
    queue.drain_rate.note_answer(started)

    with pytest.raises(QueueFull) as caught:
        queue.check_room()

    assert caught.value.retry_after_seconds == pytest.approx(40, abs=1)


def answer_steadily(rate: DrainRate, start: float, count: int, pace: float) -> float:
    """Notes answers at a steady pace and returns the time of the last one."""
    rate.note_start(start)
    for number in range(1, count + 1):
        rate.note_answer(start + number * pace)
    return start + count * pace


@pytest.mark.parametrize(("pace", "seconds"), [(0.1, 6.4), (0.5, 32), (0.001, 1), (10, 60)])
def test_estimate_follows_the_pace_within_bounds(pace: float, seconds: float) -> None:
    rate = DrainRate()
    now = answer_steadily(rate, 100, 50, pace)
    assert rate.estimate_seconds(64, now) == pytest.approx(seconds)
    assert rate.estimate_seconds(64, now + 5) >= min(60, 1.1 * seconds)


def test_idle_time_does_not_count() -> None:
    rate = DrainRate()
    answer_steadily(rate, 0, 10, 5.0)
    now = answer_steadily(rate, 10_000, 1000, 0.1)
    assert rate.estimate_seconds(100, now) == pytest.approx(10, rel=0.01)


def test_time_so_far_counts_before_the_first_answer() -> None:
    rate = DrainRate()
    assert rate.estimate_seconds(64, 5.0) == 1
    rate.note_start(10.0)
    assert rate.estimate_seconds(64, 17.0) == 7
