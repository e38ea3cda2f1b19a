"""Answers that are not the service's: each is one `ClientError`, and the next photo is labelled."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from ml_decoder_client import Answer, ClientError, ServiceProblem, UnreadableAnswer
from tests.client.conftest import Fake
from tests.support.fake_service import ANSWER
from tests.support.photos import make_photo

PHOTO = make_photo()


def meet(kind: Any, fake: Fake, status: int, body: bytes, **headers: str) -> ClientError:
    """Returns the error of a photo that is answered so, after which one is labelled."""
    service, url = fake
    service.answers, service.body = [(status, headers)], body
    with kind(url, retries=0) as client:
        first, second = client.predict_many([PHOTO, PHOTO])
        assert type(first) is type(second)
        assert isinstance(first, ClientError)
        service.answers, service.body = [(200, {})], json.dumps(ANSWER).encode()
        (good,) = client.predict_many([PHOTO])
        assert isinstance(good, Answer), "a good request still works"
    return first


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"detail": [{"loc": ["body"], "msg": "x"}]}, "HTTP 422"),
        ({"title": None, "detail": "why", "code": 7}, "HTTP 422: why"),
        ({"title": "No", "errors": None}, "No"),
        ({"title": "No", "errors": [{"message": "x"}, 1, {"where": "a", "name": []}]}, "No"),
        ({"title": "No", "errors": [{"where": "body", "name": "a", "reason": "b"}]}, "No: a: b"),
        ([], "HTTP 422"),
        (None, "HTTP 422"),
    ],
)
def test_error_of_another_shape_is_a_problem_of_what_fits(
    kind: Any, fake: Fake, body: Any, text: str
) -> None:
    problem = meet(kind, fake, 422, json.dumps(body).encode())
    assert isinstance(problem, ServiceProblem)
    assert (problem.status, problem.code, str(problem)) == (422, "", text)


def test_problem_of_another_process_is_told_in_this_one() -> None:
    values = [{"where": "query", "name": "top_k", "reason": "too small"}]
    body = {"title": "No", "code": "no", "errors": values, "request_id": "7"}
    problem = ServiceProblem(422, body)
    again = pickle.loads(pickle.dumps(problem))
    assert (type(again), str(again)) == (ServiceProblem, "No: top_k: too small")
    assert vars(again) == vars(problem)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 200_000, b""])
def test_error_that_is_no_json_is_a_problem_of_its_status(
    kind: Any, fake: Fake, body: bytes
) -> None:
    problem = meet(kind, fake, 400, body)
    assert isinstance(problem, ServiceProblem)
    assert str(problem) == "HTTP 400"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b"[" * 200_000, "Invalid JSON"),
        (b"[]", "Input should be an object"),
        (json.dumps({**ANSWER, "image": {"width": 2}}).encode(), "image.height: Field required"),
    ],
)
def test_good_status_with_another_body_is_unreadable(
    kind: Any, fake: Fake, body: bytes, reason: str
) -> None:
    error = meet(kind, fake, 200, body)
    assert isinstance(error, UnreadableAnswer)
    assert f"{fake[1]}/predict answers something else: {reason}" in str(error)
    assert "\n" not in str(error)


def test_answer_that_cannot_be_decoded_is_unreadable(kind: Any, fake: Fake) -> None:
    error = meet(kind, fake, 200, b"junk", **{"Content-Encoding": "gzip"})
    assert isinstance(error, UnreadableAnswer)
    assert f"the answer of {fake[1]} cannot be decoded" in str(error)


@pytest.mark.parametrize("body", [b"{}", b'{"label_sets": [{}]}', b'{"label_sets": 1}', b"null"])
def test_list_of_another_shape_is_unreadable(kind: Any, fake: Fake, body: bytes) -> None:
    service, url = fake
    service.body = body
    with kind(url) as client:
        with pytest.raises(UnreadableAnswer, match="answers something else"):
            client.list_label_sets()
        service.body = b'{"label_sets": []}'
        assert client.list_label_sets() == []
