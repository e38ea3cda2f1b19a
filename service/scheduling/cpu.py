"""Cores: one for each worker, to which it keeps in runs that begin while all others work.

In: how many workers there are. Out: a `Core` for each, for its own thread to keep or to leave.
Linux leaves two busy threads on one core for milliseconds while another core is idle, wherever a
third thread, here the event loop, comes and goes. What keeps to its core is never moved beside
another. Next: `batcher.py`, whose workers they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from service.scheduling.quota import read_cpu_quota


class Core:
    """A core for one thread, which alone calls the methods."""

    def __init__(self, number: int | None, all_numbers: Iterable[int] = ()) -> None:
        """Describes a core; the thread still runs anywhere.

        Args:
            number: the system's number of it; None for no core in particular.
            all_numbers: of the cores that the process may use.
        """
        self._number = number
        self._all_numbers = frozenset(all_numbers)
        self._kept = False

    def keep(self) -> None:
        """Has the calling thread run on this core alone."""
        if self._number is not None and not self._kept:
            self._move({self._number})
            self._kept = True

    def leave(self) -> None:
        """Has the calling thread run on any core again."""
        if self._kept:
            self._move(self._all_numbers)
            self._kept = False

    def _move(self, numbers: Iterable[int]) -> None:
        with suppress(OSError):  # a core may have been taken from the process meanwhile
            os.sched_setaffinity(0, numbers)


ANY_CORE = Core(None)
"""Nothing to keep to."""


def list_cores(workers: int, *, keep: bool) -> list[Core]:
    """Returns a core for each worker.

    They are cores in particular only where there is one for each worker and none is left: with
    fewer workers (other processes have the rest of the machine, or a container's quota is smaller)
    the system knows better which ones are free.

    Args:
        workers: how many, 1 or more.
        keep: whether the workers' own threads compute, so that there is something to keep.
    """
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not keep or workers == 1 or workers != len(numbers):
        return [ANY_CORE] * workers
    return [Core(number, numbers) for number in numbers]


def count_cores() -> int:
    """Returns the number of CPU cores this process may use, container limits included."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(allowed or 1, read_cpu_quota())))
