"""The quota is the smallest of the control groups that a process is in, v2 or v1."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from service.scheduling import quota
from service.scheduling.quota import read_cpu_quota


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the groups are; this process is in the topmost ones until a test says otherwise."""
    monkeypatch.setattr(quota, "_MOUNT", tmp_path / "groups")
    monkeypatch.setattr(quota, "_OWN_GROUPS", tmp_path / "own")
    enter_group(tmp_path / "groups", "0::/")
    return tmp_path / "groups"


def enter_group(mount: Path, *lines: str) -> None:
    (mount.parent / "own").write_text("".join(f"{line}\n" for line in lines))


def limit_v2(group: Path, text: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(f"{text}\n")


def limit_v1(group: Path, quota_us: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", math.inf), ("250000 100000", 2.5), ("junk", math.inf), ("", math.inf)],
)
def test_container_of_v2_has_its_quota(mount: Path, text: str, cores: float) -> None:
    limit_v2(mount, text)
    assert read_cpu_quota() == cores


@pytest.mark.parametrize(("quota_us", "cores"), [(-1, math.inf), (250_000, 2.5)])
def test_container_of_v1_has_its_quota(mount: Path, quota_us: int, cores: float) -> None:
    limit_v1(mount / "cpu", quota_us)
    enter_group(mount, "2:cpuacct,cpu:/docker/0f3a", "1:name=systemd:/docker/0f3a", "0::/")
    assert read_cpu_quota() == cores


def test_smallest_quota_on_the_way_to_the_root_counts(mount: Path) -> None:
    limit_v2(mount / "a.slice", "300000 100000")
    limit_v2(mount / "a.slice/b.slice", "150000 100000")
    limit_v2(mount / "a.slice/b.slice/c.service", "max 100000")
    limit_v2(mount / "a.slice/other.service", "100000 100000")
    enter_group(mount, "0::/a.slice/b.slice/c.service")
    assert read_cpu_quota() == 1.5


def test_group_of_v1_below_the_root_counts(mount: Path) -> None:
    limit_v1(mount / "cpu", -1)
    limit_v1(mount / "cpu/app.service", 200_000)
    enter_group(mount, "4:memory:/other", "3:cpu:/app.service", "0::/")
    assert read_cpu_quota() == 2.0


def test_system_without_control_groups_sets_no_quota(mount: Path) -> None:
    (mount.parent / "own").unlink()
    assert read_cpu_quota() == math.inf
