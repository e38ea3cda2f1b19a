"""The body of a request, read within limits, and the client's disconnect."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import errors
from service.settings import Settings

MULTIPART = "multipart/form-data"
JSON = "application/json"
BYTES = "application/octet-stream"
RAW_IMAGE = "image/*"

# uvicorn writes an answer of up to this length without waiting for its client.
_SHORT_BYTES = 65536
_WATCH_AFTER_SECONDS = 0.05
ResultT = TypeVar("ResultT")


def read_media_type(content_type: str) -> str:
    """Returns the media type of a Content-Type, without its parameters and in lower case."""
    return content_type.partition(";")[0].strip().lower()


class BodyBudget:
    """Memory left for bodies and long answers; `max_body_bytes` limits each of a thousand."""

    def __init__(self, settings: Settings) -> None:
        """Raises StartError if the largest body would never have room."""
        held, body = settings.max_held_bytes, settings.max_body_bytes
        if held < body:
            message = f"max_held_bytes must be at least max_body_bytes ({body}); it is {held}"
            raise errors.StartError(message)
        self.limit_bytes = self.free_bytes = held


class Reservation:
    """The part of the budget that one request takes."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._bytes = 0

    def grow(self, count: int) -> None:
        """Takes `count` bytes more. Raises QueueFull if other requests have them."""
        if count > self._budget.free_bytes:
            raise errors.QueueFull("too many bytes of bodies and answers in memory")
        self._budget.free_bytes -= count
        self._bytes += count

    def grow_for_answer(self, count: int) -> None:
        """As `grow`, but a request that is the only one takes what there is: it never has more."""
        self.grow(min(count, self._budget.limit_bytes - self._bytes))

    def release(self) -> None:
        """Returns all bytes to the budget; may be called twice."""
        self._budget.free_bytes += self._bytes
        self._bytes = 0


class BudgetMiddleware:
    """Reserves memory for each request, and for a long answer until it is sent, else `refuse`s."""

    def __init__(
        self,
        app: ASGIApp,
        budget: BodyBudget,
        refuse: Callable[[Request, errors.QueueFull], ASGIApp],
    ) -> None:
        self._app = app
        self._budget = budget
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102
        reservation = Reservation(self._budget)
        scope.setdefault("state", {})["reservation"] = reservation
        count, is_refused = 0, False

        def send_reserved(message: Message) -> Awaitable[None]:
            nonlocal count
            if message["type"] == "http.response.start":
                headers: Iterable[tuple[bytes, bytes]] = message["headers"]
                length = next((int(v) for name, v in headers if name == b"content-length"), 0)
                # The answer, and its copy in the transport's buffer until its client has read it.
                count = 2 * length if length > _SHORT_BYTES else 0
            return send_long(message) if count else send(message)

        async def send_long(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                try:
                    reservation.grow_for_answer(count)
                except errors.QueueFull as error:
                    is_refused = True
                    await self._refuse(Request(scope), error)(scope, receive, send)
            elif not is_refused and not message.get("more_body"):
                # uvicorn's `send` waits for the client before it writes, not after.
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}
            if not is_refused:
                await send(message)

        try:
            await self._app(scope, receive, send_reserved)
        finally:
            reservation.release()


class Body:
    """The chunks of a body, none empty.

    Raises BodyError for an invalid or slow body, QueueFull if there is no memory for it, and
    ClientDisconnect.
    """

    def __init__(self, request: Request, settings: Settings) -> None:
        """Checks the headers; reads nothing."""
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise errors.UnsupportedContentEncoding
        self._limit = settings.max_body_bytes
        digits = request.headers.get("content-length", "")
        # `int` refuses thousands of digits.
        if digits.isdecimal() and float(digits) > self._limit:
            raise errors.BodyTooLarge("The request body", self._limit)
        self._chunks = request.stream()
        self._reservation: Reservation = request.state.reservation
        self._timeout_seconds = settings.body_timeout_seconds
        self._deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        self._received = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = b""
        try:
            async with asyncio.timeout_at(self._deadline):
                while not chunk:
                    chunk = await anext(self._chunks)
        except TimeoutError as error:
            raise errors.BodyTimeout(self._timeout_seconds) from error
        self._received += len(chunk)
        # The bytes count, whatever Content-Length says.
        if self._received > self._limit:
            raise errors.BodyTooLarge("The request body", self._limit)
        self._reservation.grow(len(chunk))
        return bytes(chunk)

    async def read(self) -> bytes:
        """Returns all chunks as one."""
        return b"".join([chunk async for chunk in self])


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Returns the result of `work`; cancels it with `ClientDisconnect` if the client disconnects.

    The body must have been read. The client is watched from 0.05 s on: most work ends before, and
    a task for each request takes 30 us more, a tenth of its time without decoding and model.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    watches: list[asyncio.Task[None]] = []
    timer = loop.call_later(
        _WATCH_AFTER_SECONDS,
        lambda: watches.append(loop.create_task(_cancel_at_disconnect(request, task))),
    )
    try:
        return await work
    except asyncio.CancelledError:
        if any(watch.done() for watch in watches) and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        for watch in watches:
            watch.cancel()


async def _cancel_at_disconnect(request: Request, task: asyncio.Task[Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    task.cancel()
