"""Threads are scheduled so that they disturb a model as little as they can."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.scheduling.sharing import share_cores
from tests.support.scheduling import needs_policies

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="schedules threads otherwise")


@pytest.fixture(autouse=True)
def keep_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def read_policies() -> tuple[int, int]:
    """Returns how this thread is scheduled, and one that it starts."""
    with ThreadPoolExecutor(1) as thread:
        return os.sched_getscheduler(0), thread.submit(os.sched_getscheduler, 0).result()


def share_from(policy: int) -> tuple[int, int]:
    """Returns the same in a new thread that had this policy before."""

    def share() -> tuple[int, int]:
        os.sched_setscheduler(0, policy, os.sched_param(0))  # of this thread alone
        share_cores()
        return read_policies()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(share).result()


@needs_policies
def test_thread_and_those_that_it_starts_wait_for_their_turn() -> None:
    assert share_from(os.SCHED_OTHER) == (os.SCHED_BATCH, os.SCHED_BATCH)
    assert sys.getswitchinterval() < 0.001


@needs_policies
def test_policy_that_was_chosen_is_kept() -> None:
    assert share_from(os.SCHED_IDLE) == (os.SCHED_IDLE, os.SCHED_IDLE)


def test_refusal_of_a_sandbox_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    share_cores()
    assert os.sched_getscheduler(0) == before
