"""Coroutines in order and together, and calls in side threads."""

import asyncio
import threading
import weakref
from contextlib import aclosing
from typing import Self

import pytest

from service.errors import DeadlineExceeded, InvalidImage
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
    async with aclosing(run_in_order((works.work(n) for n in numbers), 3)) as found:
        first = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert works.begun == [0, 1, 2]
        works.gates[0].set()
        assert await first == 0
        assert [result async for result in found] == [1, 2, 4, 5, 6, 7]


async def test_closing_cancels_running_works_and_starts_no_more() -> None:
    works = Works(6)
    works.gates[0].set()
    async with aclosing(run_in_order((works.work(n) for n in range(6)), 3)) as found:
        assert await anext(found) == 0
    assert (works.begun, works.cancelled) == ([0, 1, 2], [1, 2])


async def test_failure_is_raised_in_its_turn() -> None:
    works = Works(6)
    for gate in works.gates[:5]:
        gate.set()
    found = run_in_order((works.work(n) for n in range(6)), 3)
    assert [await anext(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        await anext(found)
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
    """One thread, busy with a call until `end`."""

    def __init__(self) -> None:
        self.aside = SideThreads(1)
        self._begun, self._ending = threading.Event(), threading.Event()
        self._call = asyncio.ensure_future(self.aside.run(FAR, self._work))

    async def __aenter__(self) -> Self:
        assert await asyncio.to_thread(self._begun.wait, 30)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        self.aside.stop()

    async def end(self) -> None:
        self._ending.set()
        assert await self._call

    def _work(self) -> bool:
        self._begun.set()
        return self._ending.wait(30)


async def test_side_thread_returns_results_and_errors() -> None:
    aside = SideThreads(2)

    def refuse() -> None:
        raise InvalidImage("junk")

    assert await aside.run(FAR, divmod, 7, 2) == (3, 1)
    with pytest.raises(InvalidImage, match="junk"):
        await aside.run(FAR, refuse)
    assert await aside.run(FAR, divmod, 9, 2) == (4, 1)
    assert aside.waiting == 0
    aside.stop()


async def test_call_is_never_run_when_its_deadline_passes_before_a_thread_is_free() -> None:
    ran: list[int] = []
    async with Busy() as busy:
        with pytest.raises(DeadlineExceeded):
            await busy.aside.run(asyncio.get_running_loop().time(), ran.append, 1)
        assert busy.aside.waiting == 1
        await busy.end()
        await busy.aside.run(FAR, ran.append, 2)
        assert ran == [2]
        assert busy.aside.waiting == 0


async def test_cancelled_call_frees_its_arguments_while_the_thread_is_busy() -> None:
    async with Busy() as busy:
        photo = Photo()
        seen = weakref.ref(photo)
        leaving = asyncio.ensure_future(busy.aside.run(FAR, id, photo))
        del photo
        await asyncio.sleep(0)
        assert busy.aside.waiting == 2
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        del leaving  # its error keeps its frames, and they the arguments
        await asyncio.sleep(0)
        assert seen() is None
        assert busy.aside.waiting == 1
