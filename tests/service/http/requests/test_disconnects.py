"""Tests of clients that leave: their work is cancelled, and only theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.requests.disconnects import finish_or_leave

pytestmark = pytest.mark.anyio


class Cycle(RequestResponseCycle):
    """uvicorn's side of a request, which receives what a test says."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def receive(self) -> Any:
        return await self._receive()


def wrap(receive: Receive) -> Request:
    return Request({"type": "http", "headers": []}, Cycle(receive).receive)


def make_request(left: asyncio.Event) -> Request:
    """Returns a request whose body has been read and whose client leaves on `left`."""

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    return wrap(receive)


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


async def test_work_for_a_client_that_has_left_is_never_begun() -> None:
    left = asyncio.Event()
    left.set()

    async def work() -> None:
        raise AssertionError("it was begun")

    with pytest.raises(ClientDisconnect):
        await finish_or_leave(make_request(left), work())


async def test_what_else_a_client_sends_is_no_reason_to_stop() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    gate = asyncio.Event()
    request = wrap(messages.get)

    async def work() -> int:
        await gate.wait()
        return 7

    answering = asyncio.create_task(finish_or_leave(request, work()))
    for _ in range(3):
        await messages.put({"type": "http.request", "body": b"", "more_body": False})
        await asyncio.sleep(0)
    gate.set()

    assert await answering == 7


@pytest.mark.parametrize("leaves", [False, True])
async def test_receiving_in_a_group_of_tasks_ends_in_the_task_that_it_began_in(
    *, leaves: bool
) -> None:
    """So does Starlette's BaseHTTPMiddleware, which any app may add."""
    left, gate = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        async with anyio.create_task_group() as group:
            group.start_soon(left.wait)
        return {"type": "http.disconnect"}

    async def work() -> int:
        await gate.wait()
        return 7

    request = Request({"type": "http", "headers": []}, receive)
    answering = asyncio.create_task(finish_or_leave(request, work()))
    for _ in range(3):
        await asyncio.sleep(0)
    (left if leaves else gate).set()

    if leaves:
        with pytest.raises(ClientDisconnect):
            await answering
    else:
        assert await answering == 7


@pytest.mark.parametrize("turns", range(-1, 5))
async def test_client_that_leaves_while_it_is_answered_breaks_nothing(turns: int) -> None:
    """However many turns of the loop lie between the two; -1: it leaves behind the answer."""
    loop, left, gate = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    unexpected: list[dict[str, object]] = []
    others = asyncio.all_tasks()
    loop.set_exception_handler(lambda _loop, context: unexpected.append(context))

    async def work() -> int:
        await gate.wait()
        return 7

    answering = asyncio.create_task(finish_or_leave(make_request(left), work()))
    await asyncio.sleep(0)
    for event in (gate, left) if turns < 0 else (left, gate):
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
    (result,) = await asyncio.gather(answering, return_exceptions=True)
    for _ in range(5):
        await asyncio.sleep(0)

    assert result == 7 or isinstance(result, ClientDisconnect)
    assert unexpected == []
    assert asyncio.all_tasks() == others
