"""Cores of the workers, limits of control groups, and the policy of the threads."""

import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.scheduling import cpu
from service.scheduling.cpu import (
    ANY_CORE,
    Core,
    CoreShare,
    divide_cores,
    list_cores,
    read_cpu_quota,
    read_memory_limit,
    set_thread_scheduling,
)
from tests.support.threads import needs_policies


@pytest.fixture
def allowed() -> Iterator[set[int]]:
    """The cores of this thread, restored afterwards."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system keeps no thread to a core")
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    yield cores
    os.sched_setaffinity(0, cores)


def test_each_worker_pins_and_leaves_a_core_of_its_own(allowed: set[int]) -> None:
    cores = list_cores(len(allowed), pin=True)

    kept = []
    for core in cores:
        core.pin()
        core.pin()
        kept.append(os.sched_getaffinity(0))
        core.unpin()
        core.unpin()
        assert os.sched_getaffinity(0) == allowed

    assert kept == [{number} for number in sorted(allowed)]


def test_workers_run_anywhere_when_cores_are_left_or_unknown_or_their_threads_do_not_compute(
    allowed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(allowed)
    assert list_cores(count - 1, pin=True) == [ANY_CORE] * (count - 1)
    assert list_cores(count, pin=False) == [ANY_CORE] * count
    with monkeypatch.context() as macos:
        macos.delattr(os, "sched_getaffinity")
        assert list_cores(count, pin=True) == [ANY_CORE] * count


@pytest.mark.parametrize("core", [ANY_CORE, Core(10_000, {10_000})], ids=["any", "missing"])
def test_any_core_pins_nothing_and_a_missing_core_is_ignored(allowed: set[int], core: Core) -> None:
    core.pin()
    core.unpin()
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize(
    ("quota", "cores"), [(math.inf, 8), (9.0, 8), (3.0, 3), (2.5, 2), (0.5, 1)]
)
def test_container_quota_limits_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
) -> None:
    set_cores(monkeypatch, 8, quota)
    assert cpu.count_cores() == cores


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the groups, of which this process is in /a/b."""
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_OWN_CGROUPS", tmp_path / "own")
    lines = ("4:memory:/a/b", "2:cpuacct,cpu:/a/b", "1:name=systemd:/docker/0f3a", "0::/a/b")
    (tmp_path / "own").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def write_limits(mount: Path, limits: dict[str, str]) -> None:
    for file, text in limits.items():
        (mount / file).parent.mkdir(parents=True, exist_ok=True)
        (mount / file).write_text(f"{text}\n")


TEN_CORES = {"cpu.max": "1000000 100000"}
V1 = {f"cpu{group}/cpu.cfs_period_us": "100000" for group in ("", "/a/b")}


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        *(({}, math.inf), ({"cpu.max": "max 100000"}, math.inf), ({"cpu.max": "junk"}, math.inf)),
        (TEN_CORES | {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        (TEN_CORES | {"a/other/cpu.max": "100000 100000"}, 10),
        (V1 | {"cpu/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_quota_us": "-1"}, math.inf),
        (V1 | {"cpu/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_quota_us": "250000"}, 2.5),
        (TEN_CORES | V1 | {"cpu/cpu.cfs_quota_us": "250000"}, 2.5),
    ],
)
def test_cpu_quota_is_the_least_of_the_groups(
    mount: Path, limits: dict[str, str], cores: float
) -> None:
    write_limits(mount, limits)
    assert read_cpu_quota() == cores


@pytest.mark.parametrize(
    ("limits", "megabytes"),
    [
        *(({}, 800), ({"a/memory.max": "9000000000"}, 800), ({"other/memory.max": "1"}, 800)),
        ({"a/b/memory.max": "max", "a/memory.max": "300000000", "memory.max": "500000000"}, 300),
        ({"memory/a/b/memory.limit_in_bytes": "200000000", "a/memory.max": "300000000"}, 200),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, 800),
    ],
)
def test_memory_limit_is_the_least_of_the_groups_and_the_machine(
    monkeypatch: pytest.MonkeyPatch, mount: Path, limits: dict[str, str], megabytes: int
) -> None:
    sizes = {"SC_PAGE_SIZE": 4000, "SC_PHYS_PAGES": 200_000}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    write_limits(mount, limits)
    assert read_memory_limit() == megabytes * 1_000_000


def test_quota_is_infinite_without_control_groups(mount: Path) -> None:
    (mount / "own").unlink()
    assert read_cpu_quota() == math.inf


@pytest.fixture
def keep_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def share_from(policy: int) -> tuple[int, int]:
    """Returns the policies of a new thread, after `policy`, and of one that it starts."""

    def share() -> tuple[int, int]:
        os.sched_setscheduler(0, policy, os.sched_param(0))  # of this thread alone
        set_thread_scheduling()
        with ThreadPoolExecutor(1) as thread:
            return os.sched_getscheduler(0), thread.submit(os.sched_getscheduler, 0).result()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(share).result()


@needs_policies
@pytest.mark.usefixtures("keep_switch_interval")
def test_thread_and_its_new_threads_become_batch_work_and_keep_another_policy() -> None:
    assert share_from(os.SCHED_OTHER) == (os.SCHED_BATCH, os.SCHED_BATCH)
    assert sys.getswitchinterval() < 0.001
    assert share_from(os.SCHED_IDLE) == (os.SCHED_IDLE, os.SCHED_IDLE)


@pytest.mark.skipif(sys.platform != "linux", reason="schedules threads otherwise")
@pytest.mark.usefixtures("keep_switch_interval")
def test_forbidden_policy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    set_thread_scheduling()
    assert os.sched_getscheduler(0) == before


def set_cores(monkeypatch: pytest.MonkeyPatch, count: int, quota: float = math.inf) -> None:
    """Gives this process so many cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: quota)


def test_shares_are_disjoint_and_keep_siblings_and_packages_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cpu, "_TOPOLOGY", tmp_path)
    for number in range(16):  # two packages; the threads of a core are far apart
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{number % 8 // 4}\n")
        (topology / "core_id").write_text(f"{number % 4}\n")
    set_cores(monkeypatch, 16)
    first, second = divide_cores(2)
    assert first == CoreShare(8, frozenset([0, 1, 2, 3, 8, 9, 10, 11]))
    assert second == CoreShare(8, frozenset([4, 5, 6, 7, 12, 13, 14, 15]))
    shares = divide_cores(3)
    assert [share.count for share in shares] == [6, 5, 5]
    assert sorted(n for share in shares for n in share.numbers) == list(range(16))


def test_shares_under_a_quota_of_too_few_cores_or_without_pins_are_numbers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_cores(monkeypatch, 64, quota=10)
    assert divide_cores(4) == [CoreShare(3), CoreShare(3), CoreShare(2), CoreShare(2)]
    set_cores(monkeypatch, 2)
    assert divide_cores(3) == [CoreShare(1)] * 3
    assert divide_cores(2, pin=False) == [CoreShare(1)] * 2


def test_share_keeps_the_thread_to_its_cores(allowed: set[int]) -> None:
    for share in divide_cores(len(allowed)):
        share.pin()
        assert os.sched_getaffinity(0) == share.numbers
        os.sched_setaffinity(0, allowed)
    CoreShare(2).pin()
    assert os.sched_getaffinity(0) == allowed
