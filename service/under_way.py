"""Under way: many pieces of work, a few at a time.

In: pieces of work, which are begun as they are needed. Out: their results, in order. Used by
`cli/photos.py` and `bulk/tagging.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_in_order(
    works: Iterable[Coroutine[Any, Any, ResultT]], at_once: int
) -> AsyncGenerator[ResultT]:
    """Yields the results in the order of the works; whoever closes it cancels what is under way.

    Args:
        works: any number; no more than `at_once` are begun and not yet yielded.
        at_once: 1 or more.

    Raises:
        Exception: what a work raised, in its turn.
    """
    tasks: deque[asyncio.Task[ResultT]] = deque()
    try:
        for work in works:
            tasks.append(asyncio.create_task(work))
            if len(tasks) >= at_once:
                yield await tasks.popleft()
        while tasks:
            yield await tasks.popleft()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
