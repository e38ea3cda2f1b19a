"""Together: the photos of one request are worked on at the same time, and fail as one.

In: a piece of work for each photo. Out: their results, in order. Next: `disconnects.py`, for
clients that do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_together(works: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Returns the results in the order of the works.

    Raises:
        Exception: what the first failure raised; it has cancelled the rest.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]
