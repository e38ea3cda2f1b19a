"""Admission: which requests a pipeline takes, over its life of loading, being ready and draining.

In: requests that begin and end, answers. Out: the request goes on, or the error that refuses it,
with the time after which there may be room. Draining waits here until all have left. Next:
`pipeline.py`, whose requests they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal

from service.errors import Draining, NotReady, QueueFull
from service.scheduling.drain_rate import DrainRate

State = Literal["loading", "ready", "draining", "failed"]


class Admission:
    """Counts the requests inside; belongs to one event loop."""

    def __init__(self, places: int, is_healthy: Callable[[], bool]) -> None:
        """Takes nobody until `open`.

        Args:
            places: of the queue.
            is_healthy: whether what answers the requests lives; asked while it is open.
        """
        self._places = places
        self._is_healthy = is_healthy
        self._phase: Literal["loading", "ready", "draining"] = "loading"
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._drain_rate = DrainRate()

    @property
    def state(self) -> State:
        """Where the pipeline is in its life; `failed` means that it never answers again."""
        if self._phase == "ready" and not self._is_healthy():
            return "failed"
        return self._phase

    def open(self) -> None:
        """Takes requests from now on."""
        self._phase = "ready"

    async def close(self, deadline: float) -> None:
        """Takes no more requests, and waits until all have left.

        Args:
            deadline: second on the event loop's clock after which it waits no longer.
        """
        self._phase = "draining"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._empty.wait()

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Marks work on a request, which `close` waits for.

        Raises:
            UnavailableError: no requests are taken.
        """
        state = self.state
        if state == "draining":
            raise Draining("the pipeline is draining")
        if state != "ready":
            raise NotReady(f"the pipeline is {state}")
        if not self._inside:
            self._drain_rate.note_start(time.perf_counter())
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def note_answer(self) -> None:
        """Notes that a photo was answered."""
        self._drain_rate.note_answer(time.perf_counter())

    def turn_away(self) -> QueueFull:
        """Returns the refusal where the queue is full, which tells when it may not be."""
        full = QueueFull("no place in the queue")
        full.retry_after_seconds = self._drain_rate.estimate_seconds(
            self._places, time.perf_counter()
        )
        return full
