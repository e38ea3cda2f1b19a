"""Side threads: beside the engine's workers, for a request's work that may take long.

In: a function and when nobody wants its result any more. Out: the result, to the event loop, which
is free meanwhile. Next: `pipeline.py`, which decodes large photos and draws maps here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from service.errors import DeadlineExceeded

ArgumentTs = TypeVarTuple("ArgumentTs")
ResultT = TypeVar("ResultT")


class SideThreads:
    """A few threads, and the calls that wait for them; belongs to one event loop.

    Attributes:
        waiting: calls that are not done yet, those that a thread is at included.
    """

    def __init__(self, threads: int) -> None:
        """Prepares the threads; each starts when there is work for it."""
        self.waiting = 0
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="aside")

    async def run(
        self, deadline: float, work: Callable[[*ArgumentTs], ResultT], *arguments: *ArgumentTs
    ) -> ResultT:
        """Calls a function in one of the threads.

        Args:
            deadline: second on the event loop's clock after which nobody wants the result; what
                no thread has begun by then is never run.
            work: the function.
            *arguments: what it is called with.

        Raises:
            DeadlineExceeded: the deadline passed.
        """
        self.waiting += 1
        # Whoever leaves takes the arguments along: the executor keeps the calls that nobody wants
        # any more until a thread comes to them.
        calls: list[Callable[[], ResultT]] = [lambda: work(*arguments)]
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, lambda: calls.pop()()
                )
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed beside the engine") from error
        finally:
            self.waiting -= 1
            calls.clear()

    def stop(self) -> None:
        """Lets the threads go; what one of them is at goes on."""
        self._threads.shutdown(wait=False)
