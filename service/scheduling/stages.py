"""Stages: when each stage of a request ran, for whoever watches the pipeline.

In: the pipeline's work. Out: `Stage`s, told to `Watcher`s once a photo or a batch is done, so that
one set of times feeds metrics and traces and the pipeline knows neither. Stages of a batch are
timed where they run, deep inside the engine; they are collected only where somebody asks. Next:
`http/metrics.py`, `http/traces.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

StageName = Literal["decode", "queue", "encode", "head"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one photo.

    Attributes:
        name: `decode`, `queue`, `encode` (the photo's whole batch) or `head` (every head that
            its batch asks for).
        started: seconds of `time.perf_counter`.
        ended: seconds of `time.perf_counter`.
    """

    name: StageName
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


class Watcher(Protocol):
    """Is told what the pipeline did; its methods have to be quick and must not raise."""

    def saw_batch(self, size: int, seconds: float) -> None:
        """Is told, in a worker's thread, that a batch of `size` images was run."""

    def saw_prediction(self, stages: Sequence[Stage], batch_size: int) -> None:
        """Is told, in the request's task, of a photo that has its labels."""


_collected: ContextVar[list[Stage] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_stages() -> Iterator[list[Stage]]:
    """Collects what `time_stage` times inside, in this thread."""
    stages: list[Stage] = []
    token = _collected.set(stages)
    try:
        yield stages
    finally:
        _collected.reset(token)


@contextmanager
def time_stage(name: StageName) -> Iterator[None]:
    """Times what runs inside, where somebody collects stages."""
    stages = _collected.get()
    started = time.perf_counter()
    yield
    if stages is not None:
        stages.append(Stage(name, started, time.perf_counter()))
