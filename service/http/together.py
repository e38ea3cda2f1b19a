"""Together: the photos of one request are worked on at the same time, and fail as one.

In: a piece of work for each photo. Out: their results, in order. Next: `disconnects.py`, for
clients that do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from service.errors import without_frames

ResultT = TypeVar("ResultT")


async def run_together(works: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Returns the results in the order of the works.

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
