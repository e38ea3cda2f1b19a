"""Disconnects: a client that leaves takes its work with it.

In: a request whose body has been read, and the work for its answer. Out: the work's
result; or the work is cancelled, so that its place in the queue is free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

ResultT = TypeVar("ResultT")


async def finish_or_leave(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Returns what `work` returns, unless the client leaves before.

    Raises:
        starlette.requests.ClientDisconnect: the client left; `work` was cancelled.
    """
    # The work runs in the request's own task, and the watch in another: one task less a request.
    task = asyncio.current_task()
    assert task is not None
    left = False

    def cancel_work(watch: asyncio.Task[None]) -> None:
        nonlocal left
        if not watch.cancelled():
            left = True
            task.cancel()

    watch = asyncio.ensure_future(_wait_until_left(request))
    watch.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError:
        if left and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        watch.remove_done_callback(cancel_work)
        watch.cancel()


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
