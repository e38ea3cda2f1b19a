"""The rate limit: as many requests as the rate says, for each caller on its own."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest

from service.bundle import Bundle
from service.errors import StartError
from service.http.rate_limiter import RateLimiter
from service.http.request_errors import RateLimited
from tests.serving import PHOTO, assert_problem, send_image, serve_app


@pytest.mark.anyio
async def test_each_caller_has_the_whole_rate() -> None:
    limiter = RateLimiter("3/hour")
    for caller in ("a", "b"):
        for _ in range(3):
            await limiter.count(caller)
        with pytest.raises(RateLimited) as caught:
            await limiter.count(caller)
        assert 0 < caught.value.retry_after_seconds <= 3600


MINUTE = 60.0 * 10_000_000
"""When a minute of the clock begins."""


class Clock:
    """The time of day, as a test sets it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return self.seconds


@pytest.mark.anyio
@pytest.mark.parametrize("into_minute", [0.0, 20.0, 59.0])
async def test_who_waits_as_told_may_ask_again(
    monkeypatch: pytest.MonkeyPatch, into_minute: float
) -> None:
    clock = Clock(MINUTE + into_minute)
    monkeypatch.setattr(time, "time", clock.time)
    limiter = RateLimiter("3/minute")
    for _ in range(3):
        await limiter.count("a")
    clock.seconds += 0.2
    with pytest.raises(RateLimited) as caught:
        await limiter.count("a")
    clock.seconds += math.ceil(caught.value.retry_after_seconds)
    await limiter.count("a")


@pytest.mark.anyio
async def test_new_minute_does_not_forget_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(MINUTE - 59.95)
    monkeypatch.setattr(time, "time", clock.time)
    limiter = RateLimiter("30/minute")
    await limiter.count("a")
    clock.seconds = MINUTE - 0.1
    for _ in range(29):
        await limiter.count("a")
    clock.seconds = MINUTE + 0.1  # more than a minute behind the first
    with suppress(RateLimited):  # of many, one is forgotten
        await limiter.count("a")
    with pytest.raises(RateLimited):
        await limiter.count("a")


def test_surplus_is_429_with_the_seconds_to_wait_and_other_keys_go_on(tiny_bundle: Bundle) -> None:
    keys = ["first-key-00000001", "second-key-0000001"]
    options = {"predict_keys": ",".join(keys), "rate_limit": "2/hour"}
    with serve_app(tiny_bundle.path, **options) as client:
        for key in keys:
            headers = {"X-API-Key": key}
            assert [send_image(client, headers=headers).status_code for _ in "ab"] == [200, 200]
            refused = send_image(client, headers=headers)
            assert_problem(refused, 429, "rate_limited")
            assert 1 <= int(refused.headers["retry-after"]) <= 3600
        assert client.get("/livez").status_code == 200


def test_without_keys_each_address_has_its_rate(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path, rate_limit="1/hour") as client:
        assert send_image(client).status_code == 200
        assert_problem(send_image(client), 429, "rate_limited")


ASKING = [
    ("POST", "/predict", PHOTO),
    ("POST", "/predict/batch", b""),
    ("POST", "/v2/models/tiny-open/infer", b"{}"),
    ("GET", "/labels", b""),
    ("GET", "/labels/trained", b""),
    ("POST", "/labels", b"{}"),
    ("PUT", "/labels/pets", b"{}"),
    ("DELETE", "/labels/pets", b""),
]


@pytest.mark.parametrize(("method", "path", "body"), ASKING)
def test_every_route_that_takes_work_counts_whatever_it_answers(
    open_bundle: Bundle, method: str, path: str, body: bytes
) -> None:
    with serve_app(open_bundle.path, label_store="memory", rate_limit="1/hour") as client:
        headers = {"Content-Type": "image/png" if body == PHOTO else "application/json"}
        statuses = [
            client.request(method, path, content=body, headers=headers).status_code for _ in "ab"
        ]
        assert statuses[0] != 429
        assert statuses[1] == 429
        assert client.get("/livez").status_code == 200


@pytest.mark.parametrize("rate", ["", "often", "0", "0/minute", "-1/minute", "1/fortnight"])
def test_rate_that_is_none_stops_the_start(rate: str) -> None:
    with pytest.raises(StartError, match="rate_limit"):
        RateLimiter(rate)
