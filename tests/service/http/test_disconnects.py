"""Tests of clients that leave: their work is cancelled, and only theirs."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from service.http.disconnects import finish_or_leave

pytestmark = pytest.mark.anyio


def make_request(left: asyncio.Event) -> Request:
    """Returns a request whose body has been read and whose client leaves on `left`."""

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def test_work_of_a_client_that_stays_is_finished() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await finish_or_leave(make_request(asyncio.Event()), work()) == 7


async def test_error_of_the_work_comes_through() -> None:
    async def work() -> int:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await finish_or_leave(make_request(asyncio.Event()), work())


async def test_client_that_leaves_cancels_its_work() -> None:
    started, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    answering = asyncio.create_task(finish_or_leave(make_request(left), work()))
    await started.wait()
    left.set()
    with pytest.raises(ClientDisconnect):
        await answering
    assert cancelled.is_set()


async def test_server_that_gives_up_cancels_the_work_too() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    answering = asyncio.create_task(finish_or_leave(make_request(asyncio.Event()), work()))
    await started.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert cancelled.is_set()
