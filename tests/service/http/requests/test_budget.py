"""The body budget: what all requests hold together is bounded, and comes back."""

from __future__ import annotations

import pytest

from service.bundle.reader import Bundle
from service.errors import QueueFull, StartError
from service.http.requests.budget import BodyBudget, HeldBody
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image, serve_app


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


def test_body_without_room_is_refused_and_nothing_leaks(tiny_bundle: Bundle) -> None:
    room = 4000 + len(PHOTO)
    limits = {"max_held_bytes": room, "max_body_bytes": room}
    with serve_app(tiny_bundle.path, **limits) as client:
        for _ in range(3):
            headers = {"Content-Type": "image/png"}
            other = HeldBody(client.app.state.budget)  # type: ignore[attr-defined]
            other.grow(1)
            large = client.post("/predict", content=bytes(room), headers=headers)
            assert_problem(large, 429, "queue_full")
            assert int(large.headers["retry-after"]) > 0
            other.release()
            assert send_image(client, b"junk").status_code == 400
            assert_still_serving(client)
        assert client.app.state.budget.free_bytes == room  # type: ignore[attr-defined]


def test_less_for_all_bodies_than_for_one_stops_the_start(tiny_bundle: Bundle) -> None:
    limits = {"max_held_bytes": 999, "max_body_bytes": 1000}
    with (
        pytest.raises(StartError, match=r"at least max_body_bytes \(1000\); it is 999"),
        serve_app(tiny_bundle.path, **limits),
    ):
        pass
