"""A worker's thread keeps to a core of its own, and leaves it, where there is one for each."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from service.scheduling import cpu as cores_module
from service.scheduling.cpu import ANY_CORE, Core, count_cores, list_cores


@pytest.fixture
def allowed() -> Iterator[set[int]]:
    """The cores that this thread may run on; it gets them back."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system keeps no thread to a core")
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    yield cores
    os.sched_setaffinity(0, cores)


def test_each_worker_has_a_core_which_its_thread_keeps_to_and_leaves(allowed: set[int]) -> None:
    cores = list_cores(len(allowed), keep=True)

    kept = []
    for core in cores:
        core.keep()
        core.keep()
        kept.append(os.sched_getaffinity(0))
        core.leave()
        core.leave()
        assert os.sched_getaffinity(0) == allowed

    assert kept == [{number} for number in sorted(allowed)]


def test_fewer_workers_than_cores_run_anywhere(allowed: set[int]) -> None:
    assert list_cores(len(allowed) - 1, keep=True) == [ANY_CORE] * (len(allowed) - 1)


def test_workers_that_only_wait_for_others_run_anywhere(allowed: set[int]) -> None:
    assert list_cores(len(allowed), keep=False) == [ANY_CORE] * len(allowed)


def test_thread_with_no_core_in_particular_stays_where_it_is(allowed: set[int]) -> None:
    ANY_CORE.keep()
    ANY_CORE.leave()

    assert os.sched_getaffinity(0) == allowed


def test_core_that_was_taken_from_the_process_harms_nobody(allowed: set[int]) -> None:
    gone = Core(10_000, {10_000})

    gone.keep()
    gone.leave()

    assert os.sched_getaffinity(0) == allowed


def test_system_without_affinity_has_no_core_in_particular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)

    assert list_cores(2, keep=True) == [ANY_CORE] * 2


@pytest.mark.parametrize(
    ("quota", "cores"), [(math.inf, 8), (9.0, 8), (3.0, 3), (2.5, 2), (0.5, 1)]
)
def test_container_quota_limits_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
) -> None:
    monkeypatch.setattr(cores_module, "read_cpu_quota", lambda: quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert count_cores() == cores
