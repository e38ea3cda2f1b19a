"""The rate limit: as many requests as the rate says, for each caller on its own."""

from __future__ import annotations

import pytest

from service.bundle import Bundle
from service.errors import StartError
from service.http.rate_limiter import RateLimiter
from service.http.request_errors import RateLimited
from tests.serving import assert_problem, send_image, serve_app


@pytest.mark.anyio
async def test_each_caller_has_the_whole_rate() -> None:
    limiter = RateLimiter("3/hour")
    for caller in ("a", "b"):
        for _ in range(3):
            await limiter.count(caller)
        with pytest.raises(RateLimited) as caught:
            await limiter.count(caller)
        assert 0 < caught.value.retry_after_seconds <= 3600


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


@pytest.mark.parametrize("rate", ["", "often", "0", "0/minute", "-1/minute", "1/fortnight"])
def test_rate_that_is_none_stops_the_start(rate: str) -> None:
    with pytest.raises(StartError, match="rate_limit"):
        RateLimiter(rate)
