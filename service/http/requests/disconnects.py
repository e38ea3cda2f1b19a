"""Disconnects: a client that leaves takes its work with it.

In: a request whose body has been read, and the work for its answer. Out: the work's
result; or the work is cancelled, so that its place in the queue is free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.scheduling.timeouts import Begun

ResultT = TypeVar("ResultT")


async def finish_or_leave(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Returns what `work` returns, unless the client leaves before.

    Raises:
        starlette.requests.ClientDisconnect: the client left; `work` was cancelled.
    """
    task = asyncio.current_task()
    assert task is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        task.cancel()

    try:
        watch = _Watch(request, leave)
    except StopIteration:
        work.close()
        raise ClientDisconnect from None
    try:
        return await work
    except asyncio.CancelledError:
        if left and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        watch.stop()


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _may_be_stepped(request: Request) -> bool:
    """Tells whether `receive` waits for a mere future: uvicorn's own does.

    Others, of Starlette's BaseHTTPMiddleware for one, wait in groups of tasks or with time limits,
    which have to end in the task that they began in.
    """
    return isinstance(getattr(request.receive, "__self__", None), RequestResponseCycle)


class _Watch:
    """Waits for a client to leave, which few do: it takes a task only once something came of one.

    A task for every request was a twentieth of what a prediction costs in Python.
    """

    def __init__(self, request: Request, leave: Callable[[], None]) -> None:
        """Begins to wait; `leave` is called at the end of it.

        Raises:
            StopIteration: the client has left already.
        """
        self._waiting = _wait_until_left(request)
        self._leave = leave
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        if not _may_be_stepped(request):
            self._take_task(self._waiting)
            return
        self._waits_for = self._waiting.send(None)
        self._waits_for.add_done_callback(self._go_on)

    def stop(self) -> None:
        """Stops waiting; `leave` is not called any more."""
        self._stopped = True
        if self._task is None:
            self._waits_for.remove_done_callback(self._go_on)
            self._waiting.close()
        else:
            self._task.cancel()

    def _go_on(self, _done: object) -> None:
        if not self._stopped:  # in the same turn of the loop
            self._take_task(Begun(self._waiting, self._waits_for))

    def _take_task(self, waiting: Awaitable[None]) -> None:
        self._task = asyncio.ensure_future(waiting)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not (self._stopped or task.cancelled()):
            self._leave()
