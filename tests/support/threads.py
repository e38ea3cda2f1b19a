"""Threads: waiting, what scheduling this machine allows, and whether work blocks other threads."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

# For what takes milliseconds: a busy machine is not a failure.
PATIENCE_SECONDS = 120.0


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Checks the condition every 20 ms; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} seconds"
        time.sleep(0.02)


class Gate:
    """Blocks the calls of a function until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        function = getattr(owner, name)
        self.arrivals = 0
        self._arrived = threading.Semaphore(0)
        self._opened = threading.Event()

        def wait_and_call(*arguments: Any, **options: Any) -> Any:
            self.arrivals += 1
            self._arrived.release()
            assert self._opened.wait(PATIENCE_SECONDS)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, wait_and_call)

    def wait(self) -> None:
        """Waits for the next call."""
        assert self._arrived.acquire(timeout=PATIENCE_SECONDS)

    async def wait_for_arrival(self) -> None:
        await asyncio.to_thread(self.wait)

    def open(self) -> None:
        self._opened.set()


def _find_obstacle() -> str:
    if sys.platform != "linux":
        return "only Linux has scheduling policies"
    with ThreadPoolExecutor(1) as thread:  # its policy ends with it
        choice = thread.submit(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0))
        error = choice.exception()
    return f"no scheduling policy can be set here: {error}" if error else ""


needs_policies = pytest.mark.skipif(bool(_find_obstacle()), reason=_find_obstacle())


def count_turns(work: Callable[[], object]) -> int:
    """Returns how often this thread runs while another one does some work.

    Work that holds the interpreter would stall the event loop.
    """
    turns = 0
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        while not working.done():
            turns += 1
            time.sleep(0.001)
    working.result()
    return turns
