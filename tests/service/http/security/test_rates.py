"""The rate limit: a burst of the whole rate and its refill for each caller, in bounded memory."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.bundle.reader import Bundle
from service.errors import RateLimited, StartError
from service.http.requests import json
from service.http.security.rates import RateLimiter
from tests.support.photos import encode_picture
from tests.support.serving import PHOTO, assert_problem, send_image, serve_app, to_base64
from tests.support.threads import Gate, wait_until

KEYS = ["first-key-00000001", "second-key-0000001"]
CROWD = [f"address {number}" for number in range(1000)]


class Clock:
    """`time.monotonic`, set by the test; an odd start, so that sums are rounded."""

    def __init__(self) -> None:
        self.seconds = 1_234_567.891

    def read(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.read)
    return clock


def ask(limiter: RateLimiter, caller: str, times: int) -> None:
    for _ in range(times):
        limiter.count(caller)


@pytest.mark.parametrize("amount", [1, 7, 60, 9999])
def test_caller_at_exactly_the_rate_is_served(clock: Clock, amount: int) -> None:
    limiter = RateLimiter(f"{amount}/minute")
    start = clock.seconds
    ask(limiter, "a", amount)
    for number in range(1, 20_000):
        clock.seconds = start + number * 60 / amount
        limiter.count("a")


@pytest.mark.parametrize("minutes", [1, 2])
def test_caller_has_the_whole_rate_after_a_silent_window(clock: Clock, minutes: int) -> None:
    limiter = RateLimiter("3/minute")
    ask(limiter, "a", 3)
    for _ in range(9):  # refused requests do not lengthen the wait
        with pytest.raises(RateLimited):
            limiter.count("a")
    clock.seconds += minutes * 60
    ask(limiter, "a", 3)
    with pytest.raises(RateLimited):
        limiter.count("a")


@pytest.mark.parametrize("times", [1, 4, 5])
def test_busy_caller_is_evicted_only_by_callers_as_busy(times: int) -> None:
    limiter = RateLimiter("5/hour", max_callers=32)
    ask(limiter, "busy", 5)
    ask(limiter, "quiet", 1)
    for caller in CROWD:  # none is refused because there are many
        ask(limiter, caller, times)
    if times == 5:
        ask(limiter, "quiet", 5)
    else:
        with pytest.raises(RateLimited):
            limiter.count("busy")


def test_scattered_busier_callers_do_not_reset_a_busy_one() -> None:
    limiter = RateLimiter("6/hour", max_callers=64)
    for number in range(7):
        ask(limiter, f"busier {number}", 6)
        ask(limiter, f"quiet {number}", 1)
    ask(limiter, "busy", 5)
    for caller in CROWD:
        limiter.count(caller)
    with pytest.raises(RateLimited):
        ask(limiter, "busy", 2)


def test_caller_whose_bucket_is_full_again_is_evicted_first(clock: Clock) -> None:
    limiter = RateLimiter("5/minute", max_callers=8)
    ask(limiter, "busy", 5)
    clock.seconds += 120
    for caller in CROWD[:8]:
        ask(limiter, caller, 4)
    for caller in CROWD[:8]:
        limiter.count(caller)
        with pytest.raises(RateLimited):
            limiter.count(caller)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("rate", "window_seconds"),
    [
        *(("3/second", 1), ("3/minute", 60), ("3/hour", 3600), ("3/day", 86_400)),
        *(("3 per minute", 60), (" 3 / Minutes ", 60)),
        *(("3/2 days", 172_800), ("3per5HOURS", 18_000)),
    ],
)
def test_rate_may_be_written_in_several_ways(rate: str, window_seconds: int) -> None:
    limiter = RateLimiter(rate)
    ask(limiter, "a", 3)
    with pytest.raises(RateLimited) as caught:
        limiter.count("a")
    assert caught.value.retry_after_seconds == pytest.approx(window_seconds / 3)


@pytest.mark.parametrize(
    "rate",
    [
        *("", "often", "0", "100", "0/minute", "-1/minute", "1/fortnight", "1/0 minutes", "1/s"),
        *("1.5/minute", "1/minute; 5/hour", f"{'9' * 5000}/minute", "1/minute/minute"),
    ],
)
def test_invalid_rate_stops_the_start(rate: str) -> None:
    with pytest.raises(StartError, match="rate_limit"):
        RateLimiter(rate)
    RateLimiter("1/minute").count("a")


@pytest.fixture(scope="module")
def client(open_bundle: Bundle) -> Iterator[TestClient]:
    options = {"label_store": "memory", "admin_keys": ",".join(KEYS), "rate_limit": "1/day"}
    with serve_app(open_bundle.path, **options) as client:
        client.headers["X-API-Key"] = KEYS[0]
        yield client


def set_rate(client: TestClient, rate: str) -> None:
    client.app.state.rates = RateLimiter(rate)  # type: ignore[attr-defined]


def test_surplus_is_429_with_the_seconds_to_wait_and_other_keys_go_on(client: TestClient) -> None:
    set_rate(client, "2/hour")
    for key in KEYS:
        headers = {"X-API-Key": key}
        assert [send_image(client, headers=headers).status_code for _ in "ab"] == [200, 200]
        refused = send_image(client, headers=headers)
        assert_problem(refused, 429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 3600
    assert client.get("/livez").status_code == 200
    # Requests with an error count, too.
    set_rate(client, "1/hour")
    assert client.get("/labels/none").status_code == 404
    assert_problem(client.get("/labels/none"), 429, "rate_limited")


TENSOR = {"name": "image", "datatype": "BYTES", "shape": [3], "data": [to_base64(PHOTO)] * 3}


@pytest.mark.parametrize(
    ("path", "photos"),
    [
        *((path, {"files": [("images", PHOTO)] * 3}) for path in ("/predict/batch", "/embed")),
        ("/labels/everyday/calibrate?label=lamp", {"files": [("positive", PHOTO)] * 3}),
        ("/v2/models/tiny-open/infer", {"json": {"inputs": [TENSOR]}}),
    ],
)
def test_each_photo_of_a_request_counts(
    client: TestClient, path: str, photos: dict[str, Any]
) -> None:
    set_rate(client, "7/hour")
    assert [client.post(path, **photos).status_code for _ in "ab"] == [200, 200]
    refused = client.post(path, **photos)
    assert refused.status_code == 429
    # It has counted one: all seven are used, and three are needed.
    assert int(refused.headers["retry-after"]) == pytest.approx(3 * 3600 / 7, abs=2)


def test_large_photo_counts_for_each_12_mi_pixels(client: TestClient) -> None:
    set_rate(client, "7/hour")
    large = encode_picture(Image.new("1", (5000, 5034)), "PNG")  # just over 2 * 12 Mi pixels
    photos = (large, large, PHOTO, PHOTO)
    codes = [send_image(client, photo).status_code for photo in photos]
    assert codes == [200, 200, 200, 429]


def test_answer_of_many_labels_counts_more_but_not_304_and_head(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("service.caller.UNIT_LABELS", 2)
        set_rate(client, "5/hour")
        path, known = "/labels/everyday", {"If-None-Match": "*"}  # of three labels
        assert client.head(path).status_code == 200
        assert client.get(path, headers=known).status_code == 304
        codes = [client.get(path).status_code for _ in "abc"]
    assert codes == [200, 200, 429]
    set_rate(client, "5/hour")
    assert [client.get("/labels/everyday").status_code for _ in "abcde"] == [200] * 5


def test_long_bodies_of_one_key_do_not_delay_those_of_others(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rate(client, "99/hour")
    parse, parsed, served = json.parse_json, list[int](), client.app.state.served  # type: ignore[attr-defined]

    def remember(body: bytes, *limits: Any) -> dict[str, Any]:
        parsed.append(len(body))
        return parse(body, *limits)

    def ask(spaces: int, key: str) -> None:
        body, headers = {"image": to_base64(PHOTO) + "\n" * spaces}, {"X-API-Key": key}
        asks.append(clients.submit(client.post, "/predict", json=body, headers=headers))
        wait_until(lambda: served.side_threads.waiting == len(asks))

    asks: list[Future[Any]] = []
    with monkeypatch.context() as patch, ThreadPoolExecutor(8) as clients:
        patch.setattr(json, "parse_json", remember)
        gate = Gate(patch, json, "parse_json")
        for _ in range(7):
            ask(100_000, KEYS[0])
        ask(90_000, KEYS[1])
        gate.open()
        assert [asked.result().status_code for asked in asks] == [200] * 8
    assert parsed.index(min(parsed)) <= 4  # two ran, one has its turn before, one at the same time


def test_request_of_more_photos_than_the_rate_needs_all_of_it(clock: Clock) -> None:
    limiter = RateLimiter("10/minute")
    limiter.count("a")
    with pytest.raises(RateLimited):
        ask_for(limiter, 200)
    clock.seconds += 60
    ask_for(limiter, 200)
    for seconds in (60, 1079):  # the other 190 take 19 minutes
        clock.seconds += seconds
        with pytest.raises(RateLimited):
            limiter.count("a")
    clock.seconds += 7
    limiter.count("a")


def ask_for(limiter: RateLimiter, photos: int) -> None:
    limiter.count("a")
    limiter.count("a", photos - 1, counted=1)


@pytest.mark.parametrize("photos", [2, 4, 10, 30])
def test_request_of_several_photos_is_served_after_its_retry_after(
    clock: Clock, photos: int
) -> None:
    limiter = RateLimiter("10/minute")
    ask(limiter, "a", 9)
    with pytest.raises(RateLimited) as caught:
        ask_for(limiter, photos)
    clock.seconds += math.ceil(caught.value.retry_after_seconds)
    ask_for(limiter, photos)
