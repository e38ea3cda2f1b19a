"""Runs: the batches that workers are at, and whether one of them hangs.

In: batches, which workers begin and end. Out: a call as soon as one has been under way for too
long, as where the driver of a GPU never returns. Next: `batcher.py`, whose workers these are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from service.scheduling.queue import ItemT, ResultT, Waiting, fail_all

# How often a run is looked at before it hangs.
_LOOKS = 10


@dataclass(eq=False)
class Run(Generic[ItemT, ResultT]):
    """A batch that is under way.

    Attributes:
        batch: its items.
        looks: how often it was seen.
    """

    batch: Sequence[Waiting[ItemT, ResultT]]
    looks: int = 0


class Runs(Generic[ItemT, ResultT]):
    """All that is under way.

    `begin` and `end` belong to the workers, the rest to one event loop.
    """

    def __init__(self, max_seconds: float) -> None:
        """Watches nothing yet.

        Args:
            max_seconds: a run that is still under way after so long hangs.
        """
        self._max_seconds = max_seconds
        self._runs: set[Run[ItemT, ResultT]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Returns how many batches are under way."""
        return len(self._runs)

    def begin(self, batch: Sequence[Waiting[ItemT, ResultT]]) -> Run[ItemT, ResultT]:
        """Notes a batch until `end`."""
        run = Run(batch)
        self._runs.add(run)
        return run

    def end(self, run: Run[ItemT, ResultT]) -> None:
        """Forgets a batch."""
        self._runs.remove(run)

    def fail(self, error: Exception) -> None:
        """Fails every item that is under way; its worker goes on."""
        for run in list(self._runs):
            fail_all(run.batch, error)

    def watch(self, on_hang: Callable[[], None]) -> None:
        """Looks from now on; calls a function, once, where a run hangs."""
        pause = self._max_seconds / _LOOKS
        self._timer = asyncio.get_running_loop().call_later(pause, self._watch_on, on_hang)

    def stop(self) -> None:
        """Watches no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> bool:
        """Notes what is under way, and returns whether a run hangs.

        Looks are counted, not time: while the process is suspended there are none, and the runs
        are suspended too.
        """
        runs = list(self._runs)
        for run in runs:
            run.looks += 1
        return any(run.looks > _LOOKS for run in runs)

    def _watch_on(self, on_hang: Callable[[], None]) -> None:
        if self.look():
            on_hang()
        else:
            self.watch(on_hang)
