"""The rate limiter: as many requests as the rate says, for each caller, however many there are."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest

from service.errors import StartError
from service.http.requests.errors import RateLimited
from service.http.security.rate_limiter import RateLimiter

MINUTE = 60.0 * 10_000_000
"""When a minute, an hour and a day of the clock begin."""
CROWD = [f"address {number}" for number in range(1000)]


class Clock:
    """The clock, as a test sets it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def read(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(MINUTE)
    monkeypatch.setattr(time, "monotonic", clock.read)
    return clock


def ask(limiter: RateLimiter, caller: str, times: int) -> None:
    for _ in range(times):
        limiter.count(caller)


@pytest.mark.usefixtures("clock")
def test_each_caller_has_the_whole_rate() -> None:
    limiter = RateLimiter("3/hour")
    for caller in ("a", "b"):
        ask(limiter, caller, 3)
        with pytest.raises(RateLimited) as caught:
            limiter.count(caller)
        assert 0 < caught.value.retry_after_seconds <= 3600


@pytest.mark.parametrize("into_minute", [0.0, 20.0, 59.0])
def test_who_waits_as_told_may_ask_again(clock: Clock, into_minute: float) -> None:
    clock.seconds = MINUTE + into_minute
    limiter = RateLimiter("3/minute")
    for _ in range(3):  # the second and third time some of the minute before are left
        with suppress(RateLimited):
            ask(limiter, "a", 4)
        clock.seconds += 0.2
        with pytest.raises(RateLimited) as caught:
            limiter.count("a")
        clock.seconds += math.ceil(caught.value.retry_after_seconds)
        limiter.count("a")


def test_new_minute_does_not_forget_the_one_before(clock: Clock) -> None:
    clock.seconds = MINUTE - 59.95
    limiter = RateLimiter("30/minute")
    limiter.count("a")
    clock.seconds = MINUTE - 0.1
    ask(limiter, "a", 29)
    clock.seconds = MINUTE + 0.1  # more than a minute behind the first
    with suppress(RateLimited):  # of many, one is forgotten
        limiter.count("a")
    with pytest.raises(RateLimited):
        limiter.count("a")


def test_whoever_asked_nothing_for_two_windows_has_the_whole_rate(clock: Clock) -> None:
    limiter = RateLimiter("3/minute")
    ask(limiter, "a", 3)
    clock.seconds += 120
    ask(limiter, "a", 3)


@pytest.mark.usefixtures("clock")
def test_nobody_is_refused_because_there_are_many_callers() -> None:
    limiter = RateLimiter("1/hour", most_callers=32)
    for caller in CROWD:
        limiter.count(caller)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("times", [1, 4])
def test_crowd_does_not_let_a_busy_caller_begin_anew(times: int) -> None:
    limiter = RateLimiter("5/hour", most_callers=32)
    ask(limiter, "busy", 5)
    for caller in CROWD:
        ask(limiter, caller, times)
    with pytest.raises(RateLimited):
        limiter.count("busy")


@pytest.mark.usefixtures("clock")
def test_busier_callers_here_and_there_do_not_have_a_busy_one_forgotten() -> None:
    limiter = RateLimiter("6/hour", most_callers=64)
    for number in range(7):
        ask(limiter, f"busier {number}", 6)
        ask(limiter, f"quiet {number}", 1)
    ask(limiter, "busy", 5)
    for caller in CROWD:
        limiter.count(caller)
    with pytest.raises(RateLimited):
        ask(limiter, "busy", 2)


@pytest.mark.usefixtures("clock")
def test_caller_that_asked_little_is_forgotten_in_a_busy_crowd() -> None:
    limiter = RateLimiter("5/hour", most_callers=32)
    ask(limiter, "quiet", 1)
    for caller in CROWD:
        ask(limiter, caller, 5)
    ask(limiter, "quiet", 5)


def test_busy_caller_of_a_window_that_is_over_makes_room(clock: Clock) -> None:
    limiter = RateLimiter("5/minute", most_callers=8)
    ask(limiter, "busy", 5)
    clock.seconds += 120
    for caller in CROWD[:8]:
        ask(limiter, caller, 4)
    for caller in CROWD[:8]:
        limiter.count(caller)
        with pytest.raises(RateLimited):
            limiter.count(caller)


@pytest.mark.parametrize(
    ("rate", "window_seconds"),
    [
        *(("3/second", 1), ("3/minute", 60), ("3/hour", 3600), ("3/day", 86_400)),
        *(("3 per minute", 60), (" 3 / Minutes ", 60)),
        *(("3/2 days", 172_800), ("3per5HOURS", 18_000)),
    ],
)
def test_rate_may_be_written_in_several_ways(clock: Clock, rate: str, window_seconds: int) -> None:
    clock.seconds = 0.0
    limiter = RateLimiter(rate)
    ask(limiter, "a", 3)
    with pytest.raises(RateLimited) as caught:
        limiter.count("a")
    assert caught.value.retry_after_seconds == window_seconds


@pytest.mark.parametrize(
    "rate",
    [
        *("", "often", "0", "100", "0/minute", "-1/minute", "1/fortnight", "1/0 minutes", "1/s"),
        *("1.5/minute", "1/minute; 5/hour", f"{'9' * 5000}/minute", "1/minute/minute"),
    ],
)
def test_rate_that_is_none_stops_the_start(rate: str) -> None:
    with pytest.raises(StartError, match="rate_limit"):
        RateLimiter(rate)
    RateLimiter("1/minute").count("a")
