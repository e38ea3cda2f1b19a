"""Tests of `/predict` and `/predict/batch`: right answers; a bad image fails alone."""

from collections.abc import Callable
from textwrap import wrap
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.question import Question
from tests.support.serving import (
    PHOTO,
    assert_problem,
    labels_of,
    send_image,
    send_images,
    serve_app,
    to_base64,
)


def test_answer_names_model_and_label_set(client: TestClient) -> None:
    body = send_image(client, params={"top_k": 2}).json()
    assert body["model"] == {"name": "tiny", "version": "1.0"}
    assert body["label_set"] == {"name": "trained", "version": "1.0"}
    assert body["image"] == {"width": 48, "height": 32}
    assert {label["source"] for label in body["labels"]} == {"trained"}
    assert list(body["timings"]) == ["decode_ms", "queue_ms", "inference_ms", "total_ms"]


def test_parameters_work_in_query_form_and_json(client: TestClient) -> None:
    asked = {"top_k": 2, "include": ["cat", "dog", "car"], "exclude": ["tree"]}
    query = send_image(client, params=asked)
    form = send_image(client, data=asked)
    json = client.post("/predict", json={"image": to_base64(PHOTO), **asked})
    assert labels_of(query) == labels_of(form) == labels_of(json)
    assert len(labels_of(query)) == 2
    assert len(labels_of(send_image(client, params={"top_k": 10**30}))) == 5


def test_second_image_and_contradicting_parameters_are_422(client: TestClient) -> None:
    two = client.post("/predict", files=[("image", PHOTO), ("image", PHOTO)])
    assert_problem(two, 422, "too_many_images")
    both = send_image(client, params={"top_k": 1}, data={"top_k": "2"})
    assert_problem(both, 422, "repeated_field")


def test_found_labels_are_filled_up_with_the_best_others(client: TestClient) -> None:
    ranking = send_image(client, params={"top_k": 9}).json()["labels"]
    plain = send_image(client).json()["labels"]
    assert [label for label in ranking if label["found"]] == plain
    for least in (1, len(plain) + 1, 9):
        others = [label for label in ranking if not label["found"]][: max(0, least - len(plain))]
        expected = [label for label in ranking if label["found"] or label in others]
        for response in (
            send_image(client, params={"min_labels": least}),
            send_image(client, data={"min_labels": str(least)}),
            client.post("/predict", json={"image": to_base64(PHOTO), "min_labels": least}),
        ):
            assert response.json()["labels"] == expected
        (result,) = send_images(client, [PHOTO], params={"min_labels": least}).json()["results"]
        assert result["labels"] == expected
    number = send_image(client, params={"min_labels": 9, "threshold": 0.6}).json()["labels"]
    assert [label["found"] for label in number] == [label["score"] >= 0.6 for label in number]


@pytest.mark.parametrize(
    ("query", "form", "reason"),
    [
        ({"min_labels": 0}, {}, "greater than or equal to 1"),
        ({"min_labels": "some"}, {}, "valid integer"),
        ({"min_labels": 3, "top_k": 3}, {}, "Give either min_labels or top_k, not both"),
        ({"top_k": 3}, {"min_labels": "3"}, "Give either min_labels or top_k, not both"),
        ({}, {"min_labels": "3", "top_k": "3"}, "Give either min_labels or top_k, not both"),
    ],
)
def test_min_labels_is_at_least_1_and_without_top_k(
    client: TestClient, query: dict[str, Any], form: dict[str, str], reason: str
) -> None:
    refused = send_image(client, params=query, data=form)
    (error,) = assert_problem(refused, 422, "invalid_parameters")["errors"]
    assert (error["where"], error["name"]) == ("body" if form else "query", "min_labels")
    assert reason in error["reason"]
    assert len(labels_of(send_image(client, params={"min_labels": 3}))) >= 3


def test_empty_parameters_are_ignored(client: TestClient) -> None:
    empty = dict.fromkeys(Question.model_fields, "")
    plain = labels_of(send_image(client))
    assert labels_of(send_image(client, params=empty)) == plain
    assert labels_of(send_image(client, data=empty)) == plain
    given = send_image(client, params={"top_k": 1}, data={"top_k": "", "include": ["", "cat"]})
    assert [name for name, _ in labels_of(given)] == ["cat"]


def test_unknown_parameter_gets_the_nearest_name_and_all_names(client: TestClient) -> None:
    wrong = {"candidate_labels[]": "3"}
    (error,) = assert_problem(send_image(client, params=wrong), 422, "invalid_parameters")["errors"]
    in_form = send_image(client, data=wrong)
    in_json = client.post("/predict/batch", json={"images": [to_base64(PHOTO)], **wrong})
    details = [
        assert_problem(answer, 422, "unknown_field")["detail"] for answer in (in_form, in_json)
    ]
    for text in (error["reason"], *details):
        assert "is unknown; did you mean 'candidate_labels'? Known names: " in text
        assert all(known in text for known in Question.model_fields)


@pytest.mark.parametrize("name", ["%E9", "%ED%B3%A9", "x" * 50_000])
def test_odd_unknown_name_is_422(client: TestClient, name: str) -> None:
    answer = client.post(f"/predict?{name}=1", files={"image": PHOTO})
    assert len(assert_problem(answer, 422, "invalid_parameters")["errors"]) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda text: "\n".join(wrap(text, 76)),
        lambda text: "\r\n".join(wrap(text, 64)) + "\r\n",
        lambda text: f"data:image/png;base64,{text}",
        lambda text: f"DATA:image/svg+xml;charset=utf-8;base64,{text}",
        lambda text: f"data:;base64,{text}\n",
    ],
)
def test_base64_may_have_line_breaks_and_the_prefix_of_a_data_url(
    client: TestClient, write: Callable[[str], str]
) -> None:
    text = write(to_base64(PHOTO))
    plain = labels_of(send_image(client))
    assert labels_of(client.post("/predict", json={"image": text})) == plain
    batch = client.post("/predict/batch", json={"images": [text, text]}).json()["results"]
    assert [len(result["labels"]) for result in batch] == [len(plain)] * 2


@pytest.mark.parametrize(
    "write",
    [
        lambda text: f"data:image/png,{text}",
        lambda text: f"image/png;base64,{text}",
        lambda text: f"data:image/png;base64,data:image/png;base64,{text}",
        lambda text: f"{text[:8]} {text[8:]}",
        lambda text: f"{text[:8]}\\n{text[8:]}",
        lambda text: text.rstrip("=") + "=" * (3 - text.count("=")),
        lambda text: "-_" + text,
    ],
)
def test_other_text_around_base64_is_400(client: TestClient, write: Callable[[str], str]) -> None:
    bad = client.post("/predict", json={"image": write(to_base64(PHOTO))})
    assert "base64" in assert_problem(bad, 400, "malformed_body")["detail"]


def test_unknown_and_conflicting_labels_are_named(client: TestClient) -> None:
    for name in ("include", "exclude"):
        unknown = send_image(client, params={name: "catt"})
        assert assert_problem(unknown, 422, "unknown_label")["detail"] == (
            "'catt'; did you mean 'cat'? Searched label sets: 'trained'."
        )
    both = send_image(client, params={"include": ["cat", "dog"], "exclude": "cat"})
    problem = assert_problem(both, 422, "conflicting_labels")
    assert problem["detail"] == "'cat': leave them out of `include` or of `exclude`."


@pytest.mark.parametrize(("queue_size", "most"), [(3, 3), (100, 16)])
def test_more_images_than_16_or_the_queue_has_places_are_an_error_of_the_request(
    tiny_bundle: Bundle, queue_size: int, most: int
) -> None:
    with serve_app(tiny_bundle.path, queue_size=queue_size) as client:
        for count, status in ((most, 200), (most + 1, 422)):
            form = send_images(client, [PHOTO] * count)
            json = client.post("/predict/batch", json={"images": [to_base64(PHOTO)] * count})
            assert (form.status_code, json.status_code) == (status, status)
        for answer in (form, json):
            problem = assert_problem(answer, 422, "too_many_images")
            assert f"at most {most} image(s)" in problem["detail"]
