"""CPU cores: how many the process may use, one per worker, and how threads share them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# Lines "number:controllers:path"; v2 has one, without controllers.
_OWN_CGROUPS = Path("/proc/self/cgroup")
# A worker that has run its batch waits at most this long for the GIL. With Python's own 5 ms, a
# flood of requests, whose refusals keep the event loop busy, cost a fifth of the predictions.
_SWITCH_SECONDS = 0.0002


class Core:
    """A core for one worker's thread, which alone calls the methods.

    While the event loop wakes up often, Linux leaves two workers on one core for milliseconds and
    another core idle. So a worker that starts a run while all others run pins its core.
    """

    def __init__(self, number: int | None, all_numbers: Iterable[int] = ()) -> None:
        # The system's number, None for any core; and the numbers that the process may use.
        self._number = number
        self._all_numbers = frozenset(all_numbers)
        self._kept = False

    def keep(self) -> None:
        """Pins the calling thread to this core."""
        if self._number is not None and not self._kept:
            self._move({self._number})
            self._kept = True

    def leave(self) -> None:
        """Lets the calling thread run on any core again."""
        if self._kept:
            self._move(self._all_numbers)
            self._kept = False

    def _move(self, numbers: Iterable[int]) -> None:
        with suppress(OSError):  # a core may have been taken from the process meanwhile
            os.sched_setaffinity(0, numbers)


ANY_CORE = Core(None)


def list_cores(workers: int, *, pin: bool) -> list[Core]:
    """Returns a core for each worker; `pin` if the model runs in the workers' own threads.

    Pins none if workers and cores differ in number: the system knows which cores are free.
    """
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not pin or workers == 1 or workers != len(numbers):
        return [ANY_CORE] * workers
    return [Core(number, numbers) for number in numbers]


def count_cores() -> int:
    """Returns the number of cores that this process may use, container limits included."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(allowed or 1, read_cpu_quota())))


def read_cpu_quota() -> float:
    """Returns how many cores' time the control groups (v2 and v1) allow; infinite if unlimited."""
    return min(_read_group(group) for group in _list_groups())


def _list_groups() -> set[Path]:
    # Many do not exist: in a container /proc has the host's paths, and the mount the container's.
    v1 = _CGROUPS / "cpu"
    groups = {_CGROUPS, v1}
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            relative = Path(path.lstrip("/"))
            top = v1 if controllers else _CGROUPS
            groups.update(top / each for each in (relative, *relative.parents))
    return groups


def _read_group(group: Path) -> float:
    try:
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:
            quota, period = ((group / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        cores = int(quota) / int(period)
    except (OSError, ValueError):  # v2 says "max" if there is no quota
        return math.inf
    return cores if cores > 0 else math.inf  # v1 says -1


def share_cores() -> None:
    """Sets the switch interval, and `SCHED_BATCH` for this thread and those that it starts.

    With the default policy, the only one that is replaced, the event loop interrupts a model at
    each request and evicts its data from the core's caches.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
