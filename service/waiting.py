"""The line that items wait in: bounded, in order of arrival, each item with its own future.

In: items with deadlines. Out: the next few that somebody still waits for. Next:
`batcher.py`, which decides when to take how many.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        future: done when the item has its result, or when its client has left.
    """

    item: ItemT
    arrived: float
    deadline: float
    future: asyncio.Future[Done[ResultT]]


class WaitingLine(Generic[ItemT, ResultT]):
    """A bounded first-in first-out line; every method belongs to one event loop."""

    def __init__(self, size: int) -> None:
        """Makes an empty line with `size` places."""
        self._size = size
        self._line: deque[Waiting[ItemT, ResultT]] = deque()

    def __len__(self) -> int:
        """Returns how many items wait."""
        return len(self._line)

    @property
    def oldest(self) -> Waiting[ItemT, ResultT]:
        """The item that has waited longest; the line must not be empty."""
        return self._line[0]

    def join(self, item: ItemT, deadline: float) -> Waiting[ItemT, ResultT]:
        """Puts an item at the end.

        Raises:
            QueueFull: every place is taken.
        """
        if len(self._line) >= self._size:
            raise QueueFull("no place in the queue")
        loop = asyncio.get_running_loop()
        waiting = Waiting[ItemT, ResultT](item, time.perf_counter(), deadline, loop.create_future())
        self._line.append(waiting)
        return waiting

    def leave(self, waiting: Waiting[ItemT, ResultT]) -> None:
        """Frees an item's place, where it still has one."""
        with contextlib.suppress(ValueError):
            self._line.remove(waiting)

    def take(self, count: int) -> list[Waiting[ItemT, ResultT]]:
        """Takes up to `count` items from the front.

        Items whose client has left or whose deadline has passed are dropped on the way.
        """
        now = asyncio.get_running_loop().time()
        taken: list[Waiting[ItemT, ResultT]] = []
        while self._line and len(taken) < count:
            waiting = self._line.popleft()
            if not waiting.future.done() and waiting.deadline > now:
                taken.append(waiting)
        return taken

    def fail(self, error: Exception) -> None:
        """Empties the line; everything in it fails with `error`."""
        fail_all(self._line, error)
        self._line.clear()


def fail_all(batch: Iterable[Waiting[ItemT, ResultT]], error: Exception) -> None:
    """Fails each item that somebody still waits for."""
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_exception(error)
