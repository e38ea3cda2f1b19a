"""When a call is retried and when not; every test with `kind` runs for both clients."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import httpx2 as httpx
import pytest

from ml_decoder_client import Answer, ServiceProblem, ServiceUnreachable, connection
from ml_decoder_client.connection import Attempts
from service.bundle.reader import Bundle
from tests.client.conftest import LABEL_SET, Fake
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo

PHOTO = make_photo()
GONE = json.dumps({"title": "There is no such label set", "code": "label_set_not_found"}).encode()
CHANGED = json.dumps({"title": "Another version", "code": "label_set_changed"}).encode()
BUSY = {"Retry-After": "0"}
REQUEST = httpx.Request("GET", "http://localhost")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_FIRST_WAIT_SECONDS", 0.01)


def test_refused_call_is_retried_after_retry_after(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "1"}), (503, BUSY), (200, {})]
    started = time.monotonic()
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"
    assert time.monotonic() - started >= 1.0
    assert len(service.requests) == 3


def test_call_raises_the_last_problem_when_retries_are_used_up(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, BUSY)]
    service.body = json.dumps({"title": "The service is busy", "code": "queue_full"}).encode()
    with kind(url, retries=2) as client, pytest.raises(ServiceProblem, match="busy") as caught:
        client.predict(PHOTO)
    assert caught.value.code == "queue_full"
    assert len(service.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 504])
def test_call_is_not_retried_after_other_errors(kind: Any, fake: Fake, status: int) -> None:
    service, url = fake
    service.answers = [(status, {})]
    service.body = b"<html>not ours"
    with kind(url) as client, pytest.raises(ServiceProblem, match=f"HTTP {status}"):
        client.predict(PHOTO)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("demanded", "least", "most"),
    [
        *(("60", 60, 60), (" 60 ", 60, 60), ("86400", 300, 300), ("0", 0, 0.01)),
        *(("Wed, 01 Jan 2120 00:00:00 GMT", 300, 300), ("Wed, 01 Jan 2020 00:00:00", 0, 0.01)),
        *(("soon", 0, 0.01), ("", 0, 0.01)),
    ],
)
def test_wait_is_retry_after_up_to_five_minutes_or_else_backoff(
    demanded: str, least: float, most: float
) -> None:
    response = httpx.Response(429, headers={"Retry-After": demanded})
    wait = Attempts(5, REQUEST).record(response)
    assert least <= wait <= most


def test_waits_double_until_the_retries_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    attempts = Attempts(4, REQUEST)
    waits = [attempts.record(httpx.ConnectError("refused")) for _ in range(5)]
    assert waits == [0.01, 0.02, 0.04, 0.08, None]


@pytest.mark.parametrize(
    ("outcomes", "body", "succeeds"),
    [
        ([(0, {}), (429, BUSY)], GONE, True),
        ([(502, {}), (429, BUSY)], GONE, True),
        ([(0, {})], b'{"code": "no_examples"}', True),
        ([(429, BUSY)], GONE, False),
        ([(503, BUSY)], GONE, False),
        ([(0, {})], b"<html>not ours", False),
        ([(0, {})], b'{"code": "not_found"}', False),
    ],
)
def test_deletion_succeeds_if_the_service_lacks_the_thing_after_a_lost_response(
    kind: Any, fake: Fake, outcomes: list[tuple[int, dict[str, str]]], body: bytes, succeeds: bool
) -> None:
    service, url = fake
    service.answers, service.body = [*outcomes, (404, {})], body
    with kind(url) as client, nullcontext() if succeeds else pytest.raises(ServiceProblem):
        client.delete_label_set("set")
    assert [request[:2] for request in service.requests] == [("DELETE", "/labels/set")] * (
        len(outcomes) + 1
    )


def test_write_with_if_version_is_not_retried_after_a_lost_response(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.body = CHANGED
    with kind(url) as client:
        for write in (
            lambda: client.replace_label_set("set", ["yak"], if_version="1"),
            lambda: client.delete_label_set("set", if_version="1"),
        ):
            service.answers = [(0, {}), (412, {})]
            with pytest.raises(ServiceUnreachable, match="lost"):
                write()
            service.answers = [(502, {}), (412, {})]
            with pytest.raises(ServiceProblem) as caught:
                write()
            assert caught.value.status == 502
        assert len(service.requests) == 4
        service.answers, service.body = [(0, {}), (200, {})], json.dumps(LABEL_SET).encode()
        assert client.replace_label_set("set", ["yak"]).version == "1", "without one it is"


def test_write_with_if_version_is_retried_after_refusals() -> None:
    request = httpx.Request("PUT", "http://localhost", headers={"If-Match": '"0"'})
    for outcome in (httpx.Response(429), httpx.Response(503), httpx.ConnectError("refused")):
        assert Attempts(1, request).record(outcome) is not None


def test_rate_limit_slows_all_photos_down_and_loses_none(
    kind: Any, learning_bundle: Bundle
) -> None:
    command = serve_command(learning_bundle, "--label-store", "memory", "--rate-limit", "8/second")
    with ServerProcess(*command) as server, server.open_client() as http:
        started = time.monotonic()
        with kind(str(http.base_url).rstrip("/"), retries=2) as client:
            answers = list(client.predict_many([PHOTO] * 40, at_once=16, top_k=1))
        seconds = time.monotonic() - started
    assert [type(answer) for answer in answers] == [Answer] * 40
    assert 4 <= seconds < 20, "8 at once and 8 a second"


def test_predict_many_raises_what_all_photos_have(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(401, {})]
    with kind(url) as client:
        with pytest.raises(ServiceProblem, match="HTTP 401"):
            list(client.predict_many([PHOTO] * 1000, at_once=2))
        assert len(service.requests) < 10
        service.answers = [(200, {})]
        assert len(list(client.predict_many([PHOTO] * 3))) == 3
    words = r"cannot connect to http://127\.0\.0\.1:9: .*(refused|failed)"
    nowhere = kind("http://127.0.0.1:9", retries=2)
    with nowhere as client, pytest.raises(ServiceUnreachable, match=words):
        list(client.predict_many([PHOTO] * 1000, at_once=8))


def test_photos_are_not_retried_after_predict_many_was_stopped(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "1"})]

    def list_photos() -> Iterator[bytes]:
        yield from [PHOTO] * 3
        raise LookupError("stopped")

    started = time.monotonic()
    with kind(url, retries=5) as client, pytest.raises(LookupError, match="stopped"):
        list(client.predict_many(list_photos()))
    assert time.monotonic() - started < 5, "one wait, not three photos with five each"


def test_limit_of_a_proxy_is_named(kind: Any, fake: Fake) -> None:
    service, url = fake
    body, service.body = service.body, b"<html><h1>413 Request Entity Too Large</h1>nginx"
    service.answers = [(413, {}), (200, {})]
    with kind(url) as client:
        words = r"^HTTP 413 from a proxy .*: raise its limit \(nginx: client_max_body_size 20m\)$"
        with pytest.raises(ServiceProblem, match=words) as caught:
            client.predict(PHOTO)
        assert (caught.value.status, caught.value.code) == (413, "")
        service.body = body
        assert client.predict(PHOTO).request_id == "1"
