"""Requests that ask for what there is not: refused by name, as problems, in every kind of body."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from tests.support.serving import (
    PHOTO,
    PROBLEM_JSON,
    assert_method_refused,
    assert_problem,
    labels_of,
    send_image,
    send_images,
    to_base64,
)

JSON = {"Content-Type": "application/json"}


def test_missing_and_misnamed_image_are_named(client: httpx.Client) -> None:
    misnamed = client.post("/predict", files={"photo": PHOTO})
    assert "'photo'" in assert_problem(misnamed, 422, "unknown_field")["detail"]
    for empty in (
        client.post("/predict"),
        client.post("/predict", json={}),
        client.post("/predict", files={"top_k": (None, "1")}),
    ):
        assert "'image'" in assert_problem(empty, 422, "missing_field")["detail"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_k", value) for value in ("0", "-1", "a", "1e9")),
        *(("threshold", value) for value in ("NaN", "inf", "-1", "2", "1e999")),
        *(("min_version", value) for value in ("-1", "x", "9" * 30)),
        ("label_set", "../secret"),
        ("candidate_labels", "a\x00b"),
    ],
)
def test_parameter_out_of_range_is_422_naming_it(
    client: httpx.Client, name: str, value: str
) -> None:
    in_query = send_image(client, params={name: value})
    assert name in assert_problem(in_query, 422, "invalid_parameters")["detail"]
    in_form = send_image(client, data={name: value})
    assert name in assert_problem(in_form, 422, "invalid_parameters")["detail"]


def test_huge_top_k_means_all_labels(client: httpx.Client) -> None:
    assert len(labels_of(send_image(client, params={"top_k": 10**30}))) == 5


def test_unknown_and_conflicting_labels_are_named(client: httpx.Client) -> None:
    for where in ("include", "exclude"):
        unknown = send_image(client, params={where: "unicorn"})
        assert "'unicorn'" in assert_problem(unknown, 422, "unknown_label")["detail"]
    both = send_image(client, params={"include": ["cat", "dog"], "exclude": "cat"})
    assert assert_problem(both, 422, "conflicting_labels")["detail"] == "'cat'."
    unknown_set = send_image(client, params={"label_set": "nowhere"})
    assert "'nowhere'" in assert_problem(unknown_set, 422, "unknown_label_set")["detail"]


def test_surplus_of_parts_is_refused(client: httpx.Client) -> None:
    twice = client.post("/predict", files=[("image", PHOTO), ("image", PHOTO)])
    assert_problem(twice, 422, "too_many_images")
    assert_problem(send_image(client, data={"top_k": ["1", "2"]}), 422, "repeated_field")
    assert_problem(send_image(client, params={"top_k": ["1", "2"]}), 422, "repeated_field")
    many = send_image(client, data={"candidate_labels": [f"label {i}" for i in range(1001)]})
    assert_problem(many, 422, "invalid_labels")
    unknown = send_image(client, data={f"x{i}": "1" for i in range(1001)})
    assert_problem(unknown, 422, "unknown_field")
    long = send_image(client, data={"include": "x" * 10_000_000})
    assert_problem(long, 413, "body_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b'{"image": "***"}',
        b'{"image": "data:image/png;base64,AAAA"}',
        b'{"image": "AAAA\\ud800"}',
        b'{"image": "AAAA", "threshold": NaN}',
        b'{"image": "AAAA", "threshold": -Infinity}',
        b'{"image": "AAAA", "include": ["\\ud800"]}',
        b'{"image": "AAAA", "top_k": {"a": []}}',
        b'{"image": "AAAA", "image": "AAAA"}',
        b'{"image": "AAAA", "threshold": 1e400}',
        b'{"image": "AAAA", "top_k": ' + b"9" * 5000 + b"}",
        b"[" * 250_000,
        b'{"a":' * 80_000,
        b'{"image": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"null",
        b"",
    ],
    ids=range(16),
)
@pytest.mark.parametrize("route", ["/predict", "/predict/batch", "/labels"])
def test_junk_in_json_is_refused(client: httpx.Client, route: str, body: bytes) -> None:
    response = client.post(route, content=body, headers=JSON)
    assert response.status_code in (400, 422), response.text
    assert_problem(response, response.status_code, response.json()["code"])
    assert len(response.content) < 10_000
    assert client.get("/livez").status_code == 200


def test_wrong_path_method_and_media_type_are_problems(client: httpx.Client) -> None:
    for path in ("/nowhere", "/predict/", "/labels/", "/..%2f..%2fetc/passwd", "/%00"):
        assert_problem(client.get(path), 404, "not_found")
    assert_method_refused(client, "GET", "/predict", "POST")
    assert_method_refused(client, "DELETE", "/info", "GET")
    assert_method_refused(client, "TRACE", "/predict", "POST")
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        headers = {"Content-Type": media_type}
        response = client.post("/predict", content=PHOTO, headers=headers)
        detail = assert_problem(response, 415, "unsupported_media_type")["detail"]
        assert "multipart/form-data, image/*, application/json" in detail


def test_bad_image_of_a_batch_costs_only_itself(client: httpx.Client) -> None:
    results = send_images(client, [PHOTO, b"junk", PHOTO]).json()["results"]
    assert results[0]["labels"] == results[2]["labels"] != []
    assert (results[1]["error"]["code"], results[1]["error"]["status"]) == ("invalid_image", 400)
    assert_problem(send_images(client, [PHOTO] * 17), 422, "too_many_images")


@pytest.mark.parametrize("route", ["/info", "/labels", "/livez", "/predict"])
def test_odd_headers_change_nothing(client: httpx.Client, route: str) -> None:
    odd: dict[str, Any] = {
        "X-Request-ID": "a b\tc",
        "Host": "evil.example",
        "X-Forwarded-For": "127.0.0.1",
        "Accept": "application/xml",
        "Range": "bytes=0-1",
    }
    if route == "/predict":
        response = client.post(route, json={"image": to_base64(PHOTO)}, headers=odd)
        assert labels_of(response) != []
    else:
        response = client.get(route, headers=odd)
        assert response.status_code == 200
    assert response.headers["content-type"] != PROBLEM_JSON
    assert response.headers["x-request-id"] != odd["X-Request-ID"]
    assert "evil" not in response.text
