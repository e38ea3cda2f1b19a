"""The bounded queue between the event loop, which adds items, and the workers that take batches."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.errors import QueueFull
from service.scheduling.turns import Turns

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

LONG_WEIGHT = 12
"""An item of more weight runs alone: on a CPU, it delays others by 0.15 s and more."""
_REMEMBERED_ANSWERS = 256
_MIN_SECONDS, _MAX_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class Done(Generic[ResultT]):
    """One item's result; the times of its wait and of its whole batch's run."""

    result: ResultT
    queue_seconds: float
    run_seconds: float
    batch_size: int


@dataclass(frozen=True, eq=False)
class QueuedItem(Generic[ItemT, ResultT]):
    """An item in the queue; only the event loop changes its future."""

    item: ItemT
    arrived: float  # on `time.perf_counter`, which is finer than the event loop's clock
    deadline: float  # on the event loop's clock
    future: asyncio.Future[Done[ResultT]]
    weight: int = 1  # its run takes as long as that of so many usual items

    @property
    def is_long(self) -> bool:
        """Whether it runs alone."""
        return self.weight > LONG_WEIGHT


@dataclass(frozen=True)
class BatchSizes:
    """Items per batch: at most `most`; above `small` only if every worker can have as many."""

    most: int
    small: int


class DrainRate:
    """Rate of the last 256 answers since the service was last idle."""

    def __init__(self) -> None:
        self._answered: deque[float] = deque([-math.inf], maxlen=_REMEMBERED_ANSWERS)

    def note_start(self, now: float) -> None:
        """Restarts the measurement, so that idle time does not count."""
        self._answered.clear()
        self._answered.append(now)

    def note_answer(self, now: float) -> None:
        """Notes that one item is done."""
        self._answered.append(now)

    def estimate_seconds(self, items: int, now: float) -> float:
        """Returns the seconds, 1 to 60, that `items` answers take; grows while none comes."""
        answers = len(self._answered) - 1
        seconds = now - self._answered[0]
        if answers:
            estimate = items * seconds / answers
        else:  # the first answer takes at least this long
            estimate = seconds if math.isfinite(seconds) else _MIN_SECONDS
        return min(max(estimate, _MIN_SECONDS), _MAX_SECONDS)


class BatchQueue(Generic[ItemT, ResultT]):
    """A queue of `size` places for callers in turns; `workers` threads call `take` and `finish`.

    Long items run alone, in turn with the others, and leave a worker to them if there are several.
    `count_side_items` returns how many places are taken by items in side threads. A free worker
    waits up to `max_wait_seconds` for the oldest item's batch to fill. The caller notes
    answers in `drain_rate`.
    """

    def __init__(
        self,
        size: int,
        batch_sizes: BatchSizes,
        *,
        workers: int = 1,
        max_wait_seconds: float = 0.0,
        count_side_items: Callable[[], int] = lambda: 0,
    ) -> None:
        self._size = size
        self._batch_sizes = batch_sizes
        self._workers = workers
        self._max_wait_seconds = max_wait_seconds
        self.drain_rate = DrainRate()
        self._count_side_items = count_side_items
        self._items = Turns[QueuedItem[ItemT, ResultT]]()
        self._long = Turns[QueuedItem[ItemT, ResultT]]()
        self._long_running = 0
        self._is_long_next = True  # if both wait
        self._changed = threading.Condition()
        self._takers = 0  # workers that wait in `take`
        self._under_way = 0  # items in running batches
        self._returning = 0  # answered items whose clients may send the next ones
        self._return_by = 0.0  # until this time on `time.perf_counter`
        self._closed = False

    def __len__(self) -> int:
        return len(self._items) + len(self._long)

    @property
    def places_taken(self) -> int:
        """Items in the queue and in side threads."""
        return len(self) + self._count_side_items()

    @property
    def is_full(self) -> bool:
        """Whether another item would be refused."""
        return self.places_taken >= self._size

    def estimate_wait(self) -> float:
        """Returns the seconds, 1 to 60, that a full queue takes to drain."""
        return self.drain_rate.estimate_seconds(self._size, time.perf_counter())

    def check_room(self) -> None:
        """Raises QueueFull, with `retry_after_seconds`, if every place is taken."""
        if self.is_full:
            raise QueueFull("the queue is full", retry_after_seconds=self.estimate_wait())

    def put(self, item: ItemT, deadline: float, weight: int = 1) -> QueuedItem[ItemT, ResultT]:
        """Adds an item, to be dropped after `deadline` on the event loop's clock.

        `check_room` comes first: at once, or before the item's work in a side thread.
        """
        future = asyncio.get_running_loop().create_future()
        arrived = time.perf_counter()
        queued: QueuedItem[ItemT, ResultT] = QueuedItem(item, arrived, deadline, future, weight)
        with self._changed:
            (self._long if queued.is_long else self._items).append(queued)
            self._changed.notify()
        return queued

    def remove(self, queued: QueuedItem[ItemT, ResultT]) -> None:
        """Frees an item's place if a worker has not taken it."""
        with self._changed:
            (self._long if queued.is_long else self._items).remove(queued)

    def finish(self, count: int, return_seconds: float, *, is_long: bool = False) -> None:
        """Notes a finished batch, whose clients may send the next items within `return_seconds`.

        Until then a worker waits for its share of `count`. With one client, one item is enough.
        """
        with self._changed:
            self._under_way -= count
            if is_long:
                self._long_running -= 1
                self._changed.notify_all()  # closed, a worker may wait to take the next
                return
            self._returning = count
            self._return_by = time.perf_counter() + return_seconds

    def take(self) -> list[QueuedItem[ItemT, ResultT]]:
        """Waits for items and takes the next batch; returns nothing if closed and empty.

        Workers that wait at the same time share the items. Cancelled and expired items are dropped.
        """
        with self._changed:
            self._takers += 1
            try:
                while len(self) or not self._closed:
                    if batch := self._take_long():
                        return batch
                    pause = self._find_pause()
                    if pause != 0:
                        self._changed.wait(pause)
                    elif batch := self._cut(self._items, self._choose_batch_size()):
                        self._is_long_next = True
                        return batch
            finally:
                self._takers -= 1
        return []

    def close(self) -> None:
        """Ends the workers once the queue is empty; none waits for a fuller batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Empties the queue; every item fails with `error`."""
        with self._changed:
            left = [*self._items, *self._long]
            self._items.clear()
            self._long.clear()
            self._changed.notify_all()
        fail_items(left, error)

    def _take_long(self) -> list[QueuedItem[ItemT, ResultT]]:
        is_free = self._long_running < max(1, self._workers - 1)
        if not (self._long and is_free and (self._is_long_next or not self._items)):
            return []
        self._is_long_next = False
        taken = self._cut(self._long, 1)
        self._long_running += len(taken)
        return taken

    def _find_pause(self) -> float | None:
        """Returns the seconds to wait before the next batch; None waits for a change."""
        if not self._items:
            return 0 if self._closed and not self._long else None  # the last long one has expired
        if self._closed or len(self._items) >= self._batch_sizes.most:
            return 0
        now = time.perf_counter()
        until = min(queued.arrived for queued in self._items) + self._max_wait_seconds
        if len(self._items) < math.ceil(self._returning / self._takers):
            until = max(until, self._return_by)
        return max(0.0, until - now)

    def _choose_batch_size(self) -> int:
        sizes = self._batch_sizes
        share = math.ceil(len(self._items) / self._takers)
        # A closed queue gets no more items. With `max_wait_ms`, prefer full batches.
        if self._closed or self._max_wait_seconds > 0:
            return min(share, sizes.most)
        # Leaves a batch for each worker and one in the queue: the next free worker finds one, and
        # an item that has just missed a batch waits for a short one.
        items = len(self._items) + self._under_way + self._returning
        return min(share, sizes.most, max(sizes.small, items // (self._workers + 1)))

    def _cut(
        self, items: Turns[QueuedItem[ItemT, ResultT]], count: int
    ) -> list[QueuedItem[ItemT, ResultT]]:
        taken: list[QueuedItem[ItemT, ResultT]] = []
        while items and sum(queued.weight for queued in taken) < count:
            queued = next(iter(items))
            items.remove(queued)
            if not queued.future.done() and queued.deadline > queued.future.get_loop().time():
                taken.append(queued)
        self._under_way += len(taken)
        self._returning = max(0, self._returning - len(taken))
        return taken


def fail_items(batch: Iterable[QueuedItem[ItemT, ResultT]], error: Exception) -> None:
    """Fails each item that is not done."""
    for queued in batch:
        if not queued.future.done():
            queued.future.set_exception(error)
