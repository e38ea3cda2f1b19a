"""The body budget: what all requests hold together is bounded, and comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from service.bundle import Bundle
from service.errors import QueueFull
from service.http.body_budget import BodyBudget, HeldBody
from tests.serving import PHOTO, assert_problem, assert_still_serving, send_image, serve_app


def test_what_one_holds_others_cannot_until_it_is_released() -> None:
    budget = BodyBudget(100)
    one, other = HeldBody(budget), HeldBody(budget)
    one.grow(60)
    other.grow(40)
    with pytest.raises(QueueFull):
        other.grow(1)
    one.release()
    other.grow(60)
    one.release()  # it holds nothing any more
    other.release()
    assert budget.free_bytes == 100


def test_bodies_that_do_not_fit_together_are_refused_and_room_comes_back(
    tiny_bundle: Bundle,
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def stall() -> Iterator[bytes]:
        yield bytes(3000)
        arrived.set()
        assert go_on.wait(60)
        yield bytes(10)

    image = {"Content-Type": "image/png"}
    with serve_app(tiny_bundle.path, max_held_bytes=4000 + len(PHOTO)) as client:
        stalled = threading.Thread(
            target=lambda: client.post("/predict", content=stall(), headers=image)
        )
        stalled.start()
        # Starlette's test client hands a body over whole, so this one waits before it is sent.
        assert arrived.wait(60)
        go_on.set()
        stalled.join(60)
        for _ in range(3):  # nothing leaks
            large = client.post("/predict", content=bytes(5000 + len(PHOTO)), headers=image)
            assert_problem(large, 429, "queue_full")
            assert int(large.headers["retry-after"]) > 0
            assert_still_serving(client)
            assert send_image(client, b"junk").status_code == 400
        assert client.app.state.budget.free_bytes == 4000 + len(PHOTO)  # type: ignore[attr-defined]
