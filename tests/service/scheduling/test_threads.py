"""Beside the engine: results come back, and what nobody wants any more is neither run nor kept."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Self

import pytest

from service.errors import DeadlineExceeded, InvalidImage
from service.scheduling.threads import SideThreads

pytestmark = pytest.mark.anyio

FAR = 1e9


class Photo:
    """Something that can be seen to go."""


class Busy:
    """One thread, which is at a call until it is told to end."""

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


async def test_result_and_error_come_back() -> None:
    aside = SideThreads(2)

    def refuse() -> None:
        raise InvalidImage("junk")

    assert await aside.run(FAR, divmod, 7, 2) == (3, 1)
    with pytest.raises(InvalidImage, match="junk"):
        await aside.run(FAR, refuse)
    assert await aside.run(FAR, divmod, 9, 2) == (4, 1)
    assert aside.waiting == 0
    aside.stop()


async def test_call_whose_deadline_passes_before_a_thread_is_free_is_never_run() -> None:
    ran: list[int] = []
    async with Busy() as busy:
        with pytest.raises(DeadlineExceeded):
            await busy.aside.run(asyncio.get_running_loop().time(), ran.append, 1)
        assert busy.aside.waiting == 1
        await busy.end()
        await busy.aside.run(FAR, ran.append, 2)
        assert ran == [2]
        assert busy.aside.waiting == 0


async def test_whoever_leaves_takes_the_arguments_along_while_the_thread_is_busy() -> None:
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
        del leaving  # its error knows its frames, and they the arguments
        await asyncio.sleep(0)
        assert seen() is None
        assert busy.aside.waiting == 1
