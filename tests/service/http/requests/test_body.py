"""Tests of bodies within limits of size, memory and time, and of clients that disconnect."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from service.bundle.reader import Bundle
from service.errors import BodyTimeout, QueueFull, StartError
from service.http.requests import body as body_module
from service.http.requests.body import Body, BodyBudget, Reservation, cancel_on_disconnect
from service.settings import Settings
from tests.support.serving import assert_problem, assert_still_serving, send_image, serve_app

pytestmark = pytest.mark.anyio

DISCONNECT: Message = {"type": "http.disconnect"}
ROOM = 100_000


def make_request(receive: Receive) -> Request:
    state = {"reservation": Reservation(BodyBudget(Settings()))}
    return Request({"type": "http", "headers": [], "state": state}, receive)


def make_leaving(left: asyncio.Event) -> Request:
    """Returns a request whose body has been read and whose client leaves on `left`."""

    async def receive() -> Message:
        await left.wait()
        return DISCONNECT

    return make_request(receive)


async def finish_after(gate: asyncio.Event) -> int:
    """Work that ends when the gate is opened."""
    await gate.wait()
    return 7


async def take_turns(count: int = 20) -> None:
    """Lets the event loop run all that is ready; with a watched client, its watch too."""
    for _ in range(count):
        await asyncio.sleep(0)


def read(request: Request, timeout_seconds: float = 30) -> Any:
    return Body(request, Settings(body_timeout_seconds=timeout_seconds)).read()


def test_held_bytes_are_free_again_when_they_are_released() -> None:
    budget = BodyBudget(Settings(max_held_bytes=100, max_body_bytes=100))
    one, other = Reservation(budget), Reservation(budget)
    one.grow(60)
    other.grow(40)
    with pytest.raises(QueueFull):
        other.grow(1)
    one.release()
    other.grow(60)
    one.release()  # a second time
    other.release()
    assert budget.free_bytes == 100


@pytest.fixture(scope="module")
def narrow_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(tiny_bundle.path, max_held_bytes=ROOM, max_body_bytes=ROOM) as client:
        yield client


@pytest.fixture
def held(narrow_client: TestClient) -> Iterator[Reservation]:
    """The bytes of another request; all are free again after the test."""
    budget: BodyBudget = narrow_client.app.state.budget  # type: ignore[attr-defined]
    other = Reservation(budget)
    other.grow(1)
    yield other
    assert_still_serving(narrow_client)
    assert budget.free_bytes == ROOM


def test_body_without_room_is_refused(narrow_client: TestClient, held: Reservation) -> None:
    headers = {"Content-Type": "image/png"}
    large = narrow_client.post("/predict", content=bytes(ROOM), headers=headers)
    assert_problem(large, 429, "queue_full")
    assert int(large.headers["retry-after"]) > 0
    held.release()
    assert_problem(send_image(narrow_client, b"junk"), 400, "invalid_image")


def test_answer_longer_than_the_budget_is_sent_if_no_other_request_has_bytes(
    narrow_client: TestClient, held: Reservation
) -> None:
    assert_problem(narrow_client.get("/openapi.json"), 429, "queue_full")
    held.release()
    assert len(narrow_client.get("/openapi.json").content) > ROOM


def test_less_for_all_bodies_than_for_one_stops_the_start() -> None:
    with pytest.raises(StartError, match="max_held_bytes"):
        BodyBudget(Settings(max_held_bytes=999, max_body_bytes=1000))


@pytest.mark.parametrize("pause_seconds", [0.02, 60])
async def test_time_of_a_body_counts_from_its_beginning(pause_seconds: float) -> None:
    async def receive() -> Message:
        await asyncio.sleep(pause_seconds)
        return {"type": "http.request", "body": b"a", "more_body": True}

    with pytest.raises(BodyTimeout, match=r"0\.05 seconds"):
        await read(make_request(receive), timeout_seconds=0.05)


async def test_cancelled_reader_is_no_timeout() -> None:
    reading = asyncio.create_task(read(make_leaving(asyncio.Event())))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_client_that_leaves_ends_the_reading() -> None:
    left = asyncio.Event()
    left.set()
    with pytest.raises(ClientDisconnect):
        await read(make_leaving(left))


@pytest.mark.parametrize("watch_after", [0.0, 30.0])
async def test_error_of_the_work_comes_through(
    watch_after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "_WATCH_AFTER_SECONDS", watch_after)

    async def work() -> int:
        await take_turns()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await cancel_on_disconnect(make_leaving(asyncio.Event()), work())


@pytest.mark.parametrize("gives_up", ["client", "server"])
async def test_client_or_server_that_gives_up_cancels_the_work(gives_up: str) -> None:
    started, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    answering = asyncio.create_task(cancel_on_disconnect(make_leaving(left), work()))
    await started.wait()
    if gives_up == "client":
        left.set()
    else:
        answering.cancel()
    with pytest.raises(ClientDisconnect if gives_up == "client" else asyncio.CancelledError):
        await answering
    assert cancelled.is_set()


async def test_other_messages_do_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "_WATCH_AFTER_SECONDS", 0.0)
    messages: asyncio.Queue[Message] = asyncio.Queue()
    gate = asyncio.Event()
    answering = asyncio.create_task(
        cancel_on_disconnect(make_request(messages.get), finish_after(gate))
    )
    for _ in range(3):
        await messages.put({"type": "http.request", "body": b"", "more_body": False})
        await take_turns()
    assert messages.empty()
    gate.set()
    assert await answering == 7


@pytest.mark.parametrize("turns", range(-1, 5))
async def test_client_that_leaves_while_it_is_answered_breaks_nothing(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many turns of the event loop lie between the two; -1: it leaves after the answer."""
    monkeypatch.setattr(body_module, "_WATCH_AFTER_SECONDS", 0.0)
    loop, left, gate = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    unexpected: list[dict[str, object]] = []
    others = asyncio.all_tasks()
    loop.set_exception_handler(lambda _loop, context: unexpected.append(context))

    answering = asyncio.create_task(cancel_on_disconnect(make_leaving(left), finish_after(gate)))
    await take_turns()
    for event in (gate, left) if turns < 0 else (left, gate):
        event.set()
        await take_turns(turns)
    (result,) = await asyncio.gather(answering, return_exceptions=True)
    await take_turns()

    assert result == 7 or isinstance(result, ClientDisconnect)
    assert unexpected == []
    assert asyncio.all_tasks() == others
