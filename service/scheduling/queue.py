"""The line that items wait in: bounded, in order of arrival, each item with its own future.

In: items with deadlines, from an event loop. Out: the next batch, to whichever worker's thread
asks. Next: `batcher.py`, whose workers run what they take.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.errors import QueueFull

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Done(Generic[ResultT]):
    """One item's result and where its time went.

    Attributes:
        result: what the run gave for the item.
        queue_seconds: from joining the line to the start of the item's batch.
        run_seconds: the run of the whole batch.
        batch_size: items in the batch.
    """

    result: ResultT
    queue_seconds: float
    run_seconds: float
    batch_size: int


@dataclass(frozen=True, eq=False)
class Waiting(Generic[ItemT, ResultT]):
    """An item in the line.

    Attributes:
        item: what is to be run.
        arrived: when it joined, seconds of `time.perf_counter`, which is finer than the event
            loop's clock.
        deadline: when nobody wants its result any more, seconds on the event loop's clock.
        future: done when the item has its result, or when its client has left. Only the event
            loop changes it.
    """

    item: ItemT
    arrived: float
    deadline: float
    future: asyncio.Future[Done[ResultT]]


@dataclass(frozen=True)
class BatchSizes:
    """How many items are taken from the line at once.

    Attributes:
        most: at most, 1 or more.
        small: 1 to `most`; more are taken only where that leaves as many for the next worker.
    """

    most: int
    small: int


class WaitingLine(Generic[ItemT, ResultT]):
    """A bounded first-in first-out line.

    `take` and `finish` belong to the workers, the rest to the event loop.
    """

    def __init__(
        self, size: int, batch_sizes: BatchSizes, *, workers: int, max_wait_seconds: float
    ) -> None:
        """Makes an empty line.

        Args:
            size: places.
            batch_sizes: how many items are taken at once.
            workers: how many take from it, 1 or more.
            max_wait_seconds: how long a free worker waits for the oldest item's batch to fill.
        """
        self._size = size
        self._batch_sizes = batch_sizes
        self._workers = workers
        self._max_wait_seconds = max_wait_seconds
        self._line: deque[Waiting[ItemT, ResultT]] = deque()
        self._changed = threading.Condition()
        self._takers = 0
        self._under_way = 0
        self._returning = 0
        self._back_by = 0.0
        self._closed = False

    def __len__(self) -> int:
        """Returns how many items wait."""
        return len(self._line)

    def join(self, item: ItemT, deadline: float) -> Waiting[ItemT, ResultT]:
        """Puts an item at the end.

        Raises:
            QueueFull: every place is taken.
        """
        if len(self._line) >= self._size:
            raise QueueFull("no place in the queue")
        loop = asyncio.get_running_loop()
        waiting: Waiting[ItemT, ResultT] = Waiting(
            item, time.perf_counter(), deadline, loop.create_future()
        )
        with self._changed:
            self._line.append(waiting)
            self._changed.notify()
        return waiting

    def leave(self, waiting: Waiting[ItemT, ResultT]) -> None:
        """Frees an item's place, where it still has one."""
        with self._changed:
            # Asked first: an error of `remove` would print the item, photo and all.
            if waiting in self._line:
                self._line.remove(waiting)

    def finish(self, count: int, return_seconds: float) -> None:
        """Tells that a worker is done with what it took, and that its clients are being answered.

        They may be back with their next items. A worker that finds fewer than its share of them
        waits for it, instead of running one item now and the others after it. Nobody waits for a
        lone client, or where a batch is full.

        Args:
            count: items that it took; their clients, instead of those of an earlier call, are
                those who may be back.
            return_seconds: how long it is worth to wait for them.
        """
        with self._changed:
            self._under_way -= count
            self._returning = count
            self._back_by = time.perf_counter() + return_seconds

    def take(self) -> list[Waiting[ItemT, ResultT]]:
        """Waits for items and takes the next batch from the front.

        Workers that wait here share the items, so that none gets them all. Where there are few, a
        batch is small enough to leave as many: whoever is free next finds some too, and need not
        wait for those who are only being answered; and what has just missed a batch waits for a
        quick one. Items whose client has left or whose deadline has passed are dropped on the way.

        Returns:
            The batch; nothing where the line is closed and empty.
        """
        with self._changed:
            self._takers += 1
            try:
                while self._line or not self._closed:
                    pause = self._pause_seconds()
                    if pause != 0:
                        self._changed.wait(pause)
                    elif batch := self._cut(self._count_share()):
                        return batch
            finally:
                self._takers -= 1
        return []

    def close(self) -> None:
        """Lets the workers go as soon as the line is empty; nobody waits for fuller batches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Empties the line; everything in it fails with `error`."""
        with self._changed:
            left = list(self._line)
            self._line.clear()
            self._changed.notify_all()
        fail_all(left, error)

    def _pause_seconds(self) -> float | None:
        """Returns how long to wait before the next batch; None means until something changes."""
        if not self._line:
            return None
        if self._closed or len(self._line) >= self._batch_sizes.most:
            return 0
        now = time.perf_counter()
        until = self._line[0].arrived + self._max_wait_seconds
        if len(self._line) < math.ceil(self._returning / self._takers):
            until = max(until, self._back_by)
        return max(0.0, until - now)

    def _count_share(self) -> int:
        """Returns how many items one worker takes now."""
        share = math.ceil(len(self._line) / self._takers)
        return min(share, self._choose_batch_size())

    def _choose_batch_size(self) -> int:
        """Returns the size at which each worker has a batch and one more waits in the line."""
        sizes = self._batch_sizes
        # Nobody comes to a closed line; and who is to wait until batches are full wants them full.
        if self._closed or self._max_wait_seconds > 0:
            return sizes.most
        items = len(self._line) + self._under_way + self._returning
        return min(sizes.most, max(sizes.small, items // (self._workers + 1)))

    def _cut(self, count: int) -> list[Waiting[ItemT, ResultT]]:
        taken: list[Waiting[ItemT, ResultT]] = []
        while self._line and len(taken) < count:
            waiting = self._line.popleft()
            if not waiting.future.done() and waiting.deadline > waiting.future.get_loop().time():
                taken.append(waiting)
        self._under_way += len(taken)
        self._returning = max(0, self._returning - len(taken))
        return taken


def fail_all(batch: Iterable[Waiting[ItemT, ResultT]], error: Exception) -> None:
    """Fails each item that somebody still waits for."""
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_exception(error)
