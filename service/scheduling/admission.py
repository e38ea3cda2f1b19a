"""Admission of requests while the pipeline loads, is ready or drains; how fast it drains."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

from service.errors import Draining, NotReady

State = Literal["loading", "ready", "draining", "failed"]

_REMEMBERED_ANSWERS = 256
_MIN_SECONDS, _MAX_SECONDS = 1.0, 60.0


class DrainRate:
    """Rate of the last 256 answers since the service was last idle."""

    def __init__(self) -> None:
        self._answered: deque[float] = deque([-math.inf], maxlen=_REMEMBERED_ANSWERS)

    def note_start(self, now: float) -> None:
        """Restarts the measurement, so that idle time does not count."""
        self._answered.clear()
        self._answered.append(now)

    def note_answer(self, now: float) -> None:
        """Notes that one item is done."""
        self._answered.append(now)

    def estimate_seconds(self, items: int, now: float) -> float:
        """Returns the seconds, 1 to 60, that `items` answers take; grows while none comes."""
        answers = len(self._answered) - 1
        seconds = now - self._answered[0]
        if answers:
            estimate = items * seconds / answers
        else:  # the first answer takes at least this long
            estimate = seconds if math.isfinite(seconds) else _MIN_SECONDS
        return min(max(estimate, _MIN_SECONDS), _MAX_SECONDS)


class Admission:
    """Refuses requests until `open`, and counts the admitted ones; belongs to one event loop."""

    def __init__(self, is_healthy: Callable[[], bool], drain_rate: DrainRate) -> None:
        self._is_healthy = is_healthy
        self._drain_rate = drain_rate
        self._phase: Literal["loading", "ready", "draining"] = "loading"
        self._admitted = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def state(self) -> State:
        """The phase; `failed` is final."""
        if self._phase == "ready" and not self._is_healthy():
            return "failed"
        return self._phase

    def open(self) -> None:
        """Admits requests from now on."""
        self._phase = "ready"

    async def close(self, deadline: float) -> None:
        """Refuses new requests; waits for the others until `deadline` on the loop's clock."""
        self._phase = "draining"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._empty.wait()

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Admits a request, whose end `close` waits for; raises UnavailableError unless ready."""
        state = self.state
        if state == "draining":
            raise Draining("the pipeline is draining")
        if state != "ready":
            raise NotReady(f"the pipeline is {state}")
        if not self._admitted:
            self._drain_rate.note_start(time.perf_counter())
        self._admitted += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if not self._admitted:
                self._empty.set()
