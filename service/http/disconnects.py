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
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_until_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
