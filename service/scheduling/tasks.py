"""Tasks: several pieces of work at the same time: many, a few of them at once, or all together.

In: pieces of work. Out: their results, in order. `run_in_order` is for the photos of a folder
(`cli/photos.py`, `bulk/tagging.py`), `run_together` for those of one request (`http/routes`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, TypeVar

from service.errors import without_frames

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


async def run_together(works: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Returns the results in the order of the works, which are begun at once and fail as one.

    Raises:
        Exception: what the first failure raised; it has cancelled the rest.
    """
    tasks: list[asyncio.Task[ResultT]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        failure = failures.exceptions[0]
        without_frames(failures)
    else:
        return [task.result() for task in tasks]
    try:
        raise failure
    finally:
        # They would keep this frame, and it them: a cycle, in which the whole request stayed until
        # Python looks for garbage. The same holds of the group and its traceback.
        del failure, tasks
