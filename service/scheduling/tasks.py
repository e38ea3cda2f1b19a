"""Concurrency: coroutines in order or all together, and functions in side threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from service.errors import DeadlineExceeded, without_frames

ArgumentTs = TypeVarTuple("ArgumentTs")
ResultT = TypeVar("ResultT")


async def run_in_order(
    works: Iterable[Coroutine[Any, Any, ResultT]], at_once: int
) -> AsyncGenerator[ResultT]:
    """Yields the results, or raises the errors, in the order of `works`.

    At most `at_once` are started and not yet yielded. Closing the generator cancels them.
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
    """Returns the results in the order of `works`; the first error cancels the rest."""
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
        # The frame and these refer to each other: a cycle that keeps the whole request until
        # Python's next garbage collection.
        del failure, tasks


class SideThreads:
    """A thread pool for work outside the engine's workers; belongs to one event loop."""

    def __init__(self, threads: int) -> None:
        self.waiting = 0  # calls that are not done, the running ones included
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="aside")

    async def run(
        self, deadline: float, work: Callable[[*ArgumentTs], ResultT], *arguments: *ArgumentTs
    ) -> ResultT:
        """Calls a function in one of the threads, or raises DeadlineExceeded.

        A call that has not started at the deadline, on the event loop's clock, is never run.
        """
        self.waiting += 1
        # The executor keeps an abandoned call until a thread is free; `clear` frees its photo.
        calls: list[Callable[[], ResultT]] = [lambda: work(*arguments)]
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, lambda: calls.pop()()
                )
        except TimeoutError as error:
            raise DeadlineExceeded("deadline exceeded in a side thread") from error
        finally:
            self.waiting -= 1
            calls.clear()

    def stop(self) -> None:
        """Ends the threads once their running calls end."""
        self._threads.shutdown(wait=False)
