"""Concurrency: coroutines in order or all together, and functions in side threads."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from service.errors import DeadlineExceeded, Draining, OutOfMemory, without_frames
from service.scheduling.turns import Turns

ArgumentTs = TypeVarTuple("ArgumentTs")
ResultT = TypeVar("ResultT")
Works: TypeAlias = Iterable[Coroutine[Any, Any, ResultT]]


async def run_in_order(works: Works[ResultT], at_once: int) -> AsyncGenerator[ResultT]:
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


async def collect_in_order(works: Works[ResultT], at_once: int) -> list[ResultT]:
    """Returns the results of `run_in_order`; the first error cancels the rest."""
    async with aclosing(run_in_order(works, at_once)) as results:
        return [result async for result in results]


async def run_together(works: Works[ResultT]) -> list[ResultT]:
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


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    run: Callable[[], Any]
    pixels: int
    future: asyncio.Future[Any]


class SideThreads:
    """Threads for work outside the engine's workers; belongs to one event loop.

    Callers take turns. Calls with `pixels` run in at most `threads` threads and have at
    most `max_pixels` together, but one of them may always run. One more thread is for calls
    without, so that a small photo never waits for large ones.
    """

    def __init__(self, threads: int, max_pixels: int = 0) -> None:
        self.waiting = 0  # calls that are not done, the running ones included
        self._threads = ThreadPoolExecutor(threads + 1, thread_name_prefix="side")
        self._free = threads + 1
        self._max_large, self._max_pixels = threads, max_pixels
        self._running: list[int] = []  # pixels of the running calls that have some
        self._calls = Turns[_Call]()  # that have not started

    async def run(
        self,
        deadline: float,
        work: Callable[[*ArgumentTs], ResultT],
        *arguments: *ArgumentTs,
        pixels: int = 0,
    ) -> ResultT:
        """Calls a function in one of the threads. Raises `DeadlineExceeded` or `OutOfMemory`.

        A call that has not started at the deadline, on the event loop's clock, is never run.
        """
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        call = _Call(lambda: work(*arguments), pixels, future)
        self._calls.append(call)
        self.waiting += 1
        try:
            self._start_calls()
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded("deadline exceeded in a side thread") from error
        except MemoryError as error:
            raise OutOfMemory("out of memory in a side thread") from error
        finally:
            self.waiting -= 1
            self._calls.remove(call)  # if it never started: frees its photo
            # The future's error refers to this frame, and the frame to the future.
            del call, future

    def stop(self) -> None:
        """Ends the threads once their running calls end; the others fail with `Draining`."""
        for call in self._calls:
            if not call.future.done():
                call.future.set_exception(Draining("stopped before this call was run"))
        self._calls.clear()
        self._threads.shutdown(wait=False)

    def _start_calls(self) -> None:
        while self._free and (call := self._take_next()) is not None:
            self._free -= 1
            if call.pixels:
                self._running.append(call.pixels)
            running = call.future.get_loop().run_in_executor(self._threads, call.run)
            running.add_done_callback(partial(self._end, call))

    def _take_next(self) -> _Call | None:
        is_full = False
        for call in self._calls:
            # No large call overtakes another: a larger one would never find enough room.
            is_full = is_full or (call.pixels > 0 and not self._has_room(call.pixels))
            if not (call.pixels and is_full) and not call.future.done():
                self._calls.remove(call)
                return call
        return None

    def _has_room(self, pixels: int) -> bool:
        others = self._running
        return not others or (
            len(others) < self._max_large and sum(others) + pixels <= self._max_pixels
        )

    def _end(self, call: _Call, done: asyncio.Future[Any]) -> None:
        self._free += 1
        if call.pixels:
            self._running.remove(call.pixels)
        error = done.exception()
        if not call.future.done():
            if error is None:
                call.future.set_result(done.result())
            else:
                call.future.set_exception(error)
        self._start_calls()
