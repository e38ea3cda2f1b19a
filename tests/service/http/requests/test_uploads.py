"""Tests of the bodies: what is too large, malformed or of another type is refused."""

from __future__ import annotations

import io

import pytest
from fastapi.testclient import TestClient

from service.http.requests.multipart import MAX_TEXT_PARTS
from tests.support.photos import make_photo
from tests.support.serving import (
    MAX_BODY_BYTES,
    PHOTO,
    assert_problem,
    labels_of,
    send_image,
    to_base64,
)


def test_missing_and_misnamed_image_fields_are_named(client: TestClient) -> None:
    wrong = client.post("/predict", files={"photo": PHOTO})
    assert "'photo'" in assert_problem(wrong, 422, "unknown_field")["detail"]
    none = client.post("/predict", files={"top_k": (None, "1")})
    assert "'image'" in assert_problem(none, 422, "missing_field")["detail"]
    assert "'image'" in assert_problem(client.post("/predict"), 422, "missing_field")["detail"]
    assert_problem(client.post("/predict", json={}), 422, "missing_field")


def test_content_decides_over_the_declared_type(client: TestClient) -> None:
    jpeg = make_photo(0, "JPEG")
    part = client.post("/predict", files={"image": ("a.txt", jpeg, "text/plain")})
    raw = client.post("/predict", content=jpeg, headers={"Content-Type": "image/png"})
    assert labels_of(part) == labels_of(raw) != []


def test_body_over_the_limit_is_413_however_it_comes(client: TestClient) -> None:
    large = b"x" * (MAX_BODY_BYTES + 1)
    image = {"Content-Type": "image/png"}
    assert_problem(client.post("/predict", content=large, headers=image), 413, "body_too_large")
    chunked = client.post("/predict", content=io.BytesIO(large), headers=image)
    assert_problem(chunked, 413, "body_too_large")
    lying = client.post("/predict", content=large, headers={**image, "Content-Length": "5"})
    assert_problem(lying, 413, "body_too_large")
    assert_problem(send_image(client, large), 413, "body_too_large")
    assert_problem(client.post("/predict", json={"image": "A" * 400_000}), 413, "body_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity", ""])
def test_content_encoding_is_415(client: TestClient, encoding: str) -> None:
    headers = {"Content-Type": "image/png", "Content-Encoding": encoding}
    response = client.post("/predict", content=PHOTO, headers=headers)
    assert_problem(response, 415, "unsupported_content_encoding")


def test_repeated_and_contradicting_parameters_are_422(client: TestClient) -> None:
    assert_problem(send_image(client, params={"top_k": [1, 2]}), 422, "repeated_field")
    assert_problem(send_image(client, data={"top_k": ["1", "1"]}), 422, "repeated_field")
    both = send_image(client, params={"top_k": 1}, data={"top_k": "2"})
    assert_problem(both, 422, "repeated_field")
    two = client.post("/predict", files=[("image", PHOTO), ("image", PHOTO)])
    assert_problem(two, 422, "too_many_images")


def test_too_many_parts_and_huge_text_fields_are_refused(client: TestClient) -> None:
    many = send_image(client, data={"include": ["cat"] * (MAX_TEXT_PARTS + 1)})
    assert_problem(many, 400, "malformed_body")
    long = send_image(client, data={"include": "x" * 10_000})
    assert_problem(long, 413, "body_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b'{"image": "',
        b"[" * 250_000,
        b'{"a":' * 40_000,
        b'{"image": "AAAA", "threshold": NaN}',
        b'{"image": "AAAA", "threshold": -Infinity}',
        b'{"image": "AAAA", "image": "AAAA"}',
        b'{"\\ud800": 1}',
        b'{"image": "\xff"}',
        b"[1]",
        b"null",
        b'{"image": 5}',
        b'{"image": ["AAAA"]}',
        b'{"image": "***"}',
        b'{"image": "AAAA\\ud800"}',
        b'{"image": "AAA"}',
        b'{"image": "data:image/png;base64,AAAA"}',
    ],
    ids=range(16),
)
def test_malformed_json_is_400(client: TestClient, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert_problem(client.post("/predict", content=body, headers=headers), 400, "malformed_body")


@pytest.mark.parametrize(
    "member", [b'"include": ["\\ud800"]', b'"threshold": "NaN"', b'"top_k": {"a": []}']
)
def test_odd_json_values_are_422(client: TestClient, member: bytes) -> None:
    body = b'{"image": "AAAA", ' + member + b"}"
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = client.post("/predict", content=body, headers=headers)
    assert_problem(response, 422, "invalid_parameters")


def test_member_that_is_given_twice_is_told_apart_from_broken_json(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    twice = client.post("/predict", content=b'{"top_k": 1, "top_k": 2}', headers=headers)
    assert "twice" in assert_problem(twice, 400, "malformed_body")["detail"]
    broken = client.post("/predict", content=b'{"top_k": 1', headers=headers)
    assert "valid JSON" in assert_problem(broken, 400, "malformed_body")["detail"]
    assert labels_of(client.post("/predict", json={"image": to_base64(PHOTO)})) != []
