"""The quota: how much processor time the container, or a control group around it, leaves us.

In: Linux' files of control groups, v2 and v1. Out: a number of cores. Next: `cores.py`.
"""

from __future__ import annotations

import math
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
# Lines "number:controllers:path"; v2 has one, without controllers.
_OWN_GROUPS = Path("/proc/self/cgroup")


def read_cpu_quota() -> float:
    """Returns how many cores' time this process may use; infinite where nothing limits it."""
    return min(_read_group(group) for group in _list_groups())


def _list_groups() -> set[Path]:
    """Returns the folders of this process's groups, those around them included.

    Many are not there: in a container the path is mostly the host's, and the mount the container's.
    """
    v1 = _MOUNT / "cpu"
    groups = {_MOUNT, v1}
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            relative = Path(path.lstrip("/"))
            top = v1 if controllers else _MOUNT
            groups.update(top / each for each in (relative, *relative.parents))
    return groups


def _read_group(group: Path) -> float:
    try:
        quota, period = _read_numbers(group)
        cores = int(quota) / int(period)
    except (OSError, ValueError):  # v2 says "max" where there is no quota
        return math.inf
    return cores if cores > 0 else math.inf  # v1 says -1


def _read_numbers(group: Path) -> list[str]:
    """Returns quota and period, in microseconds."""
    try:
        return (group / "cpu.max").read_text().split()
    except OSError:
        return [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
