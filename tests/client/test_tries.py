"""When a call is sent again, and when not; every test of `kind` runs for both clients."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from ml_decoder_client import ServiceProblem, ServiceUnreachable, tries
from ml_decoder_client.tries import make_tries
from tests.client.conftest import LABEL_SET, Fake
from tests.support.fake_service import ANSWER
from tests.support.photos import make_photo

PHOTO = make_photo()
GONE = json.dumps({"title": "There is no such label set", "code": "label_set_not_found"}).encode()
CHANGED = json.dumps({"title": "Another version", "code": "label_set_changed"}).encode()
BUSY = {"Retry-After": "0"}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "_FIRST_WAIT_SECONDS", 0.01)


def test_refused_call_is_sent_again_when_the_service_says(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "1"}), (503, {"Retry-After": "0"}), (200, {})]
    started = time.monotonic()
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"
    assert time.monotonic() - started >= 1.0
    assert len(service.requests) == 3


def test_refusals_end_in_the_last_problem(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(429, {"Retry-After": "0"})]
    service.body = json.dumps({"title": "The service is busy", "code": "queue_full"}).encode()
    with kind(url, retries=2) as client, pytest.raises(ServiceProblem, match="busy") as caught:
        client.predict(PHOTO)
    assert caught.value.code == "queue_full"
    assert len(service.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 504])
def test_other_errors_are_not_sent_again(kind: Any, fake: Fake, status: int) -> None:
    service, url = fake
    service.answers = [(status, {})]
    service.body = b"<html>not ours"
    with kind(url) as client, pytest.raises(ServiceProblem, match=f"HTTP {status}"):
        client.predict(PHOTO)
    assert len(service.requests) == 1


def test_broken_connection_is_tried_again(kind: Any, fake: Fake) -> None:
    service, url = fake
    service.answers = [(0, {}), (200, {})]
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"


def test_wait_that_the_service_demands_is_kept_to_five_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for demanded in ("60", "300", "86400"):
        make_tries(5).sleep(httpx.Response(429, headers={"Retry-After": demanded}))
    assert waits == [60, 300, 300]


@pytest.mark.parametrize("lost", [0, 502])
def test_deletion_whose_answer_was_lost_takes_a_set_that_is_gone_for_done(
    kind: Any, fake: Fake, lost: int
) -> None:
    service, url = fake
    service.answers, service.body = [(lost, {}), (429, BUSY), (404, {})], GONE
    with kind(url) as client:
        client.delete_label_set("set")
    assert [request[:2] for request in service.requests] == [("DELETE", "/labels/set")] * 3


@pytest.mark.parametrize("refusals", [[(429, BUSY)], [(503, BUSY)]])
def test_deletion_of_a_set_that_never_was_is_a_problem(
    kind: Any, fake: Fake, refusals: list[tuple[int, dict[str, str]]]
) -> None:
    service, url = fake
    service.answers, service.body = [*refusals, (404, {})], GONE
    with kind(url) as client:
        with pytest.raises(ServiceProblem, match="no such label set"):
            client.delete_label_set("set")
        service.answers, service.body = [(200, {})], json.dumps(ANSWER).encode()
        assert client.predict(PHOTO).request_id == "1"


@pytest.mark.parametrize("body", [b"<html>not ours", b'{"code": "not_found"}'])
def test_only_the_service_says_that_a_set_is_gone(kind: Any, fake: Fake, body: bytes) -> None:
    service, url = fake
    service.answers, service.body = [(0, {}), (404, {})], body
    with kind(url) as client:
        with pytest.raises(ServiceProblem):
            client.delete_label_set("set")
        service.answers, service.body = [(200, {})], json.dumps(ANSWER).encode()
        assert client.predict(PHOTO).request_id == "1"


def test_write_that_demands_a_version_is_not_sent_again_after_a_lost_answer(
    kind: Any, fake: Fake
) -> None:
    service, url = fake
    service.body = CHANGED
    with kind(url) as client:
        for write in (
            lambda: client.replace_label_set("set", ["yak"], if_version="1"),
            lambda: client.delete_label_set("set", if_version="1"),
        ):
            service.answers = [(0, {}), (412, {})]
            with pytest.raises(ServiceUnreachable, match="broke"):
                write()
            service.answers = [(502, {}), (412, {})]
            with pytest.raises(ServiceProblem) as caught:
                write()
            assert caught.value.status == 502
        assert len(service.requests) == 4
        service.answers, service.body = [(0, {}), (200, {})], json.dumps(LABEL_SET).encode()
        assert client.replace_label_set("set", ["yak"]).version == "1", "without one it is"


def test_write_that_demands_a_version_is_sent_again_where_nothing_was_done(
    kind: Any, fake: Fake
) -> None:
    service, url = fake
    service.answers = [(429, BUSY), (503, BUSY), (200, {})]
    service.body = json.dumps(LABEL_SET).encode()
    with kind(url) as client:
        assert client.replace_label_set("set", ["yak"], if_version="0").version == "1"
    assert len(service.requests) == 3
    assert make_tries(1).without_doubt().is_retryable_exception(httpx.ConnectError("refused"))
