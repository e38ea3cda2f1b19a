"""Patience: work that may have to wait, and how long it may take.

In: a coroutine and seconds. Out: its result, or TimeoutError. What `asyncio.timeout` does, but for
the timer: most of this work finds what it needs (a body that came with its headers, label sets
that are known) and ends without having waited, and timers took a fifteenth of what a prediction
costs in Python. Next: `pipeline.py`, `http/uploads.py`, `http/disconnects.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def finish_within(seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Returns what `work` returns; it runs in the caller's task.

    Args:
        seconds: how long it may take from the first time that it waits.
        work: what to await.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    async with asyncio.timeout(seconds):
        return await Begun(work, waits_for)


class Begun(Generator[Any, Any, ResultT]):
    """The rest of a coroutine that waits for something already."""

    def __init__(self, work: Coroutine[Any, Any, ResultT], waits_for: object) -> None:
        """Takes over a coroutine that was sent None once, and what it gave then."""
        self._work = work
        self._waits_for = [waits_for]

    def __await__(self) -> Generator[Any, Any, ResultT]:
        """Goes on from that wait."""
        return self

    def send(self, value: object) -> object:
        """Hands out what the work waits for; then goes on with it."""
        return self._waits_for.pop() if self._waits_for else self._work.send(value)

    def throw(self, *error: Any) -> object:  # noqa: ANN401 - as of every generator
        """Raises an error, such as that of a cancelled task, where the work waits."""
        return self._work.throw(*error)
