"""CPU cores and memory that this process may use; cores of its workers, shares of processes."""

import itertools
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# Lines "number:controllers:path"; v2 has one, without controllers.
_OWN_CGROUPS = Path("/proc/self/cgroup")
# A worker that has run its batch waits at most this long for the GIL. With Python's own 5 ms, a
# flood of requests, whose refusals keep the event loop busy, cost a fifth of the predictions.
_SWITCH_SECONDS = 0.0002
_TOPOLOGY = Path("/sys/devices/system/cpu")


class Core:
    """A core for one worker; only the worker's thread calls the methods.

    While the event loop wakes up often, Linux leaves two workers on one core for milliseconds and
    another core idle. So a worker that starts a run while all others run pins its core.
    """

    def __init__(self, number: int | None, all_numbers: Iterable[int] = ()) -> None:
        # The system's number, None for any core; and the numbers that the process may use.
        self._number = number
        self._all_numbers = frozenset(all_numbers)
        self._pinned = False

    def pin(self) -> None:
        """Pins the calling thread to this core."""
        if self._number is not None and not self._pinned:
            _move_thread({self._number})
            self._pinned = True

    def unpin(self) -> None:
        """Lets the calling thread run on any core again."""
        if self._pinned:
            _move_thread(self._all_numbers)
            self._pinned = False


def _move_thread(numbers: Iterable[int]) -> None:
    with suppress(OSError):  # a core may have been taken from the process meanwhile
        os.sched_setaffinity(0, numbers)


def _list_numbers() -> list[int]:
    """Returns the numbers of the cores that this process may use; none on macOS."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


ANY_CORE = Core(None)


def list_cores(workers: int, *, pin: bool) -> list[Core]:
    """Returns a core for each worker; `pin` if the model runs in the workers' own threads.

    If workers and cores differ in number, none is pinned: the kernel knows which cores are free.
    """
    numbers = _list_numbers()
    if not pin or workers == 1 or workers != len(numbers):
        return [ANY_CORE] * workers
    return [Core(number, numbers) for number in numbers]


def count_cores() -> int:
    """Returns the number of cores that this process may use, container limits included."""
    allowed = len(_list_numbers()) or os.cpu_count() or 1
    return max(1, int(min(allowed, read_cpu_quota())))


@dataclass(frozen=True)
class CoreShare:
    """The cores of one of several processes: a number, and which; none means any."""

    count: int
    numbers: frozenset[int] = frozenset()

    def pin(self) -> None:
        """Pins this thread, and those that it starts, to these cores."""
        if self.numbers:
            _move_thread(self.numbers)


def divide_cores(processes: int, *, pin: bool = True) -> list[CoreShare]:
    """Divides the cores among processes; cores of one package stay together.

    With `pin` false, a container's quota below the number of cores, or more processes than cores, a
    share has a number only: the kernel knows which cores are free.
    """
    count = count_cores()
    least, larger = divmod(count, processes)
    sizes = [max(1, least + (process < larger)) for process in range(processes)]
    numbers = _list_numbers()
    if not pin or count < max(len(numbers), processes):
        return [CoreShare(size) for size in sizes]
    numbers.sort(key=_locate)
    shares = zip(sizes, itertools.accumulate(sizes), strict=True)
    return [CoreShare(size, frozenset(numbers[end - size : end])) for size, end in shares]


def _locate(number: int) -> tuple[int, int, int]:
    # The two threads of a core are far apart by number.
    topology, names = _TOPOLOGY / f"cpu{number}" / "topology", ("physical_package_id", "core_id")
    try:
        package, core = (int((topology / name).read_text()) for name in names)
    except (OSError, ValueError):
        return 0, number, number
    return package, core, number


def read_cpu_quota() -> float:
    """Returns the CPU quota of the control groups (v2 and v1), in cores; infinite if unlimited."""
    return min(_read_quota(group) for group in _list_groups("cpu"))


def read_memory_limit() -> int:
    """Returns the machine's memory in bytes, or the limit of the control groups if it is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(machine, *(_read_memory(group) for group in _list_groups("memory"))))


def _list_groups(controller: str) -> set[Path]:
    # Many do not exist: in a container /proc has the host's paths, and the mount the container's.
    v1 = _CGROUPS / controller
    groups = {_CGROUPS, v1}
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            relative = Path(group.lstrip("/"))
            top = v1 if controllers else _CGROUPS
            groups.update(top / path for path in (relative, *relative.parents))
    return groups


def _read_quota(group: Path) -> float:
    try:
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:
            quota, period = ((group / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        cores = int(quota) / int(period)
    except (OSError, ValueError):  # v2 says "max" if there is no quota
        return math.inf
    return cores if cores > 0 else math.inf  # v1 says -1


def _read_memory(group: Path) -> float:
    for name in ("memory.max", "memory.limit_in_bytes"):  # v2 and v1
        with suppress(OSError, ValueError):  # v2 says "max", v1 the largest number
            return int((group / name).read_text())
    return math.inf


def set_thread_scheduling() -> None:
    """Sets Python's switch interval, and `SCHED_BATCH` for this thread and those that it starts.

    With the default policy, the event loop interrupts a model at each request and evicts its data
    from the core's caches. Another policy is kept.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
