"""Coroutines in order and together, and calls in side threads."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Self

import pytest

from service.caller import CALLER, Caller
from service.errors import DeadlineExceeded, Draining, InvalidImage, OutOfMemory
from service.scheduling.tasks import SideThreads, run_in_order, run_together

pytestmark = pytest.mark.anyio

FAR = 1e9


class Works:
    """Coroutines that wait for their gates; notes which began and which were cancelled."""

    def __init__(self, count: int) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.gates = [asyncio.Event() for _ in range(count)]

    async def work(self, number: int) -> int:
        self.begun.append(number)
        try:
            await self.gates[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number == 3:
            raise ZeroDivisionError
        return number


async def test_results_come_in_order_with_a_few_works_at_once() -> None:
    works = Works(8)
    for gate in works.gates[1:]:
        gate.set()
    numbers = (0, 1, 2, 4, 5, 6, 7)
    async with aclosing(run_in_order((works.work(n) for n in numbers), 3)) as results:
        first = asyncio.ensure_future(anext(results))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert works.begun == [0, 1, 2]
        works.gates[0].set()
        assert await first == 0
        assert [result async for result in results] == [1, 2, 4, 5, 6, 7]


async def test_closing_cancels_running_works_and_starts_no_more() -> None:
    works = Works(6)
    works.gates[0].set()
    async with aclosing(run_in_order((works.work(n) for n in range(6)), 3)) as results:
        assert await anext(results) == 0
    assert (works.begun, works.cancelled) == ([0, 1, 2], [1, 2])


async def test_failure_is_raised_in_its_turn() -> None:
    works = Works(6)
    for gate in works.gates[:5]:
        gate.set()
    results = run_in_order((works.work(n) for n in range(6)), 3)
    assert [await anext(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        await anext(results)
    assert works.cancelled == [5]


async def test_works_together_start_at_once_and_return_in_order() -> None:
    works = Works(3)
    together = asyncio.ensure_future(run_together(works.work(n) for n in (2, 0, 1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert works.begun == [2, 0, 1]
    for gate in works.gates:
        gate.set()
    assert await together == [2, 0, 1]


async def test_first_failure_is_raised_unwrapped_and_cancels_the_rest() -> None:
    works = Works(6)
    works.gates[3].set()
    with pytest.raises(ZeroDivisionError):
        await run_together(works.work(n) for n in range(6))
    assert sorted(works.cancelled) == [0, 1, 2, 4, 5]


class Photo:
    """An argument with weak references."""


class Busy:
    """The one thread for large photos, busy with a call until `end`."""

    def __init__(self) -> None:
        self.threads = SideThreads(1)
        self._begun, self._ending = threading.Event(), threading.Event()
        self._call = asyncio.ensure_future(self.threads.run(FAR, self._work, pixels=1))

    async def __aenter__(self) -> Self:
        assert await asyncio.to_thread(self._begun.wait, 30)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        self.threads.stop()

    async def end(self) -> None:
        self._ending.set()
        assert await self._call

    def _work(self) -> bool:
        self._begun.set()
        return self._ending.wait(30)


async def test_side_thread_returns_results_and_errors() -> None:
    threads = SideThreads(2)

    def fail(error: type[Exception]) -> None:
        raise error("junk")

    assert await threads.run(FAR, divmod, 7, 2) == (3, 1)
    for raised, error in ((InvalidImage, InvalidImage), (MemoryError, OutOfMemory)):
        with pytest.raises(error):
            await threads.run(FAR, fail, raised)
    assert await threads.run(FAR, divmod, 9, 2) == (4, 1)
    assert threads.waiting == 0
    threads.stop()


async def test_call_is_never_run_when_its_deadline_passes_before_a_thread_is_free() -> None:
    ran: list[int] = []
    async with Busy() as busy:
        with pytest.raises(DeadlineExceeded):
            await busy.threads.run(asyncio.get_running_loop().time(), ran.append, 1, pixels=1)
        assert busy.threads.waiting == 1
        await busy.end()
        await busy.threads.run(FAR, ran.append, 2, pixels=1)
        assert ran == [2]
        assert busy.threads.waiting == 0


async def test_cancelled_call_frees_its_arguments_while_the_thread_is_busy() -> None:
    async with Busy() as busy:
        photo = Photo()
        seen = weakref.ref(photo)
        leaving = asyncio.ensure_future(busy.threads.run(FAR, id, photo, pixels=1))
        del photo
        await asyncio.sleep(0)
        assert busy.threads.waiting == 2
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        del leaving  # its error keeps its frames, and they the arguments
        await asyncio.sleep(0)
        assert seen() is None
        assert busy.threads.waiting == 1


async def run_as(key: str, threads: SideThreads, work: Callable[[], object], pixels: int) -> object:
    caller = Caller()
    caller.key = key
    CALLER.set(caller)
    return await threads.run(FAR, work, pixels=pixels)


async def test_callers_take_turns_and_small_calls_never_wait_for_large_ones() -> None:
    ran: list[str] = []
    async with Busy() as busy:

        def ask(key: str, name: str, pixels: int) -> asyncio.Task[object]:
            return asyncio.create_task(
                run_as(key, busy.threads, partial(ran.append, name), pixels), context=copy_context()
            )

        large = [ask("a", f"a{n}", 5) for n in range(3)] + [ask("b", f"b{n}", 5) for n in range(2)]
        await ask("a", "small of a", 0)
        await ask("c", "small of c", 0)
        assert ran == ["small of a", "small of c"]
        await busy.end()
        await asyncio.gather(*large)
        assert ran[2:] == ["b0", "a0", "b1", "a1", "a2"]  # a has had a turn
        assert busy.threads.waiting == 0


async def test_large_calls_share_the_pixels_and_are_not_overtaken() -> None:
    seen: list[list[int]] = []
    threads = SideThreads(3, max_pixels=10)
    # 4 would find room next to 3, but 8 came first. 11 is more than there is, and may run.
    sizes = (3, 8, 4, 11, 5)
    await asyncio.gather(
        *(threads.run(FAR, lambda: seen.append([*threads._running]), pixels=size) for size in sizes)
    )
    assert seen == [[3], [8], [4], [11], [5]]
    threads.stop()


async def test_stop_fails_calls_that_have_not_started() -> None:
    async with Busy() as busy:
        late = asyncio.ensure_future(busy.threads.run(FAR, id, 0, pixels=1))
        await asyncio.sleep(0)
        busy.threads.stop()
        with pytest.raises(Draining):
            await late
