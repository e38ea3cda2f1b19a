"""The rate limit of the service: where it counts, whom, and what it answers."""

from __future__ import annotations

import pytest

from service.bundle.reader import Bundle
from tests.support.serving import PHOTO, assert_problem, send_image, serve_app


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
