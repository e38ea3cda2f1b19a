"""Tests of `/predict` and `/predict/batch`: right answers; a bad image fails alone."""

from collections.abc import Callable
from textwrap import wrap
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.question import Question
from tests.support.photos import make_photo
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


def test_three_kinds_of_body_give_the_same_answer(client: TestClient) -> None:
    form = send_image(client, PHOTO)
    raw = client.post("/predict", content=PHOTO, headers={"Content-Type": "image/png"})
    json = client.post("/predict", json={"image": to_base64(PHOTO)})
    assert labels_of(form) == labels_of(raw) == labels_of(json) != []


def test_parameters_work_in_query_form_and_json(client: TestClient) -> None:
    asked = {"top_k": 2, "include": ["cat", "dog", "car"], "exclude": ["tree"]}
    query = send_image(client, params=asked)
    form = send_image(client, data=asked)
    json = client.post("/predict", json={"image": to_base64(PHOTO), **asked})
    assert labels_of(query) == labels_of(form) == labels_of(json)
    assert len(labels_of(query)) == 2


def test_client_request_id_comes_back(client: TestClient) -> None:
    response = send_image(client, headers={"X-Request-ID": "abc-1"})
    assert response.headers["x-request-id"] == response.json()["request_id"] == "abc-1"


def test_batch_rows_equal_single_answers(client: TestClient) -> None:
    photos = [make_photo(seed) for seed in range(16)]
    results = send_images(client, photos, params={"top_k": 5}).json()["results"]
    for photo, result in zip(photos, results, strict=True):
        alone = dict(labels_of(send_image(client, photo, params={"top_k": 5})))
        together = {label["label"]: label["score"] for label in result["labels"]}
        assert together == pytest.approx(alone, abs=1e-5)


def test_second_image_and_contradicting_parameters_are_422(client: TestClient) -> None:
    two = client.post("/predict", files=[("image", PHOTO), ("image", PHOTO)])
    assert_problem(two, 422, "too_many_images")
    both = send_image(client, params={"top_k": 1}, data={"top_k": "2"})
    assert_problem(both, 422, "repeated_field")


def test_bad_image_of_a_batch_fails_alone(client: TestClient) -> None:
    good = send_images(client, [PHOTO, b"junk", PHOTO]).json()["results"]
    assert good[0]["labels"] == good[2]["labels"] != []
    assert set(good[1]) == {"error"}
    assert (good[1]["error"]["code"], good[1]["error"]["status"]) == ("invalid_image", 400)


def test_bad_base64_of_a_json_batch_fails_alone(client: TestClient) -> None:
    body = {"images": ["data:image/png,AAAA", to_base64(PHOTO)]}
    results = client.post("/predict/batch", json=body).json()["results"]
    assert results[0]["error"]["code"] == "malformed_body"
    assert results[1]["labels"]


def test_batch_over_the_maximum_is_refused(client: TestClient) -> None:
    assert_problem(send_images(client, [PHOTO] * 17), 422, "too_many_images")
    body = {"images": [to_base64(PHOTO)] * 17}
    assert_problem(client.post("/predict/batch", json=body), 422, "too_many_images")
    assert_problem(client.post("/predict/batch", json={"images": []}), 422, "missing_field")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_k", "0"), ("threshold", "often"), ("threshold", "NaN")),
        *(("min_version", "9" * 30), ("explain", "maybe"), ("topk", "3")),
    ],
)
def test_bad_parameter_is_422_naming_it(client: TestClient, name: str, value: str) -> None:
    in_query = assert_problem(send_image(client, params={name: value}), 422, "invalid_parameters")
    assert [(e["where"], e["name"]) for e in in_query["errors"]] == [("query", name)]
    code = "unknown_field" if name == "topk" else "invalid_parameters"
    assert name in assert_problem(send_image(client, data={name: value}), 422, code)["detail"]


@pytest.mark.parametrize("name", sorted(Question.model_fields))
def test_empty_parameter_is_ignored(client: TestClient, name: str) -> None:
    plain = labels_of(send_image(client))
    assert labels_of(send_image(client, params={name: ""})) == plain
    assert labels_of(send_image(client, data={name: ""})) == plain
    given = send_image(client, params={"top_k": 1}, data={"top_k": "", "include": ["", "cat"]})
    assert [name for name, _ in labels_of(given)] == ["cat"]


@pytest.mark.parametrize("name", sorted(Question.model_fields))
def test_text_that_is_not_utf8_is_422_naming_its_parameter(client: TestClient, name: str) -> None:
    in_query = client.post(f"/predict?{name}=caf%E9", files={"image": PHOTO})
    part = f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + b"caf\xe9"
    in_form = client.post(
        "/predict",
        content=part
        + b'\r\n--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n'
        + PHOTO
        + b"\r\n--x--\r\n",
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    for where, answer in (("query", in_query), ("body", in_form)):
        (error,) = assert_problem(answer, 422, "invalid_parameters")["errors"]
        assert error == {"where": where, "name": name, "reason": "Text should be UTF-8"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("topk", "top_k"), ("candidate_labels[]", "candidate_labels"), ("labels_set", "label_set")],
)
@pytest.mark.parametrize("path", ["/predict", "/predict/batch"])
def test_unknown_parameter_gets_the_nearest_name_and_all_names(
    client: TestClient, path: str, name: str, nearest: str
) -> None:
    image = "images" if path.endswith("batch") else "image"
    base64 = to_base64(PHOTO)
    json = {image: [base64] if path.endswith("batch") else base64}
    in_query = client.post(f"{path}?{quote(name)}=3", files={image: PHOTO})
    (error,) = assert_problem(in_query, 422, "invalid_parameters")["errors"]
    in_form = client.post(path, files={image: PHOTO}, data={name: "3"})
    in_json = client.post(path, json={**json, name: "3"})
    details = [assert_problem(each, 422, "unknown_field")["detail"] for each in (in_form, in_json)]
    for text in (error["reason"], *details):
        assert f"is unknown; did you mean '{nearest}'? Known names: " in text
        assert all(known in text for known in Question.model_fields)
    assert client.post(path, json=json).status_code == 200


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


@pytest.mark.parametrize("name", ["top_k", "threshold", "min_version"])
def test_true_is_not_a_number(client: TestClient, name: str) -> None:
    asked = {"image": to_base64(PHOTO)}
    bad = client.post("/predict", json={**asked, name: True})
    assert name in assert_problem(bad, 422, "invalid_parameters")["detail"]
    assert client.post("/predict", json={**asked, "top_k": 1}).status_code == 200


def test_huge_top_k_means_all_labels(client: TestClient) -> None:
    assert len(labels_of(send_image(client, params={"top_k": 10**30}))) == 5


def test_unknown_and_conflicting_labels_are_named(client: TestClient) -> None:
    for name in ("include", "exclude"):
        unknown = send_image(client, params={name: "catt"})
        assert assert_problem(unknown, 422, "unknown_label")["detail"] == (
            "'catt'; did you mean 'cat'? Searched label sets: 'trained'."
        )
    both = send_image(client, params={"include": ["cat", "dog"], "exclude": "cat"})
    problem = assert_problem(both, 422, "conflicting_labels")
    assert problem["detail"] == "'cat': leave them out of `include` or of `exclude`."


@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("surplus", [1, 16])
def test_more_images_than_the_queue_has_places_are_an_error_of_the_request(
    tiny_bundle: Bundle, places: int, surplus: int
) -> None:
    with serve_app(tiny_bundle.path, queue_size=places) as client:
        texts = [to_base64(PHOTO)] * places
        too_many = {"images": texts + [to_base64(PHOTO)] * surplus}
        for answer in (
            send_images(client, [PHOTO] * (places + surplus)),
            client.post("/predict/batch", json=too_many),
        ):
            problem = assert_problem(answer, 422, "too_many_images")
            assert f"at most {places} image(s)" in problem["detail"]
        assert send_images(client, [PHOTO] * places).status_code == 200
        assert client.post("/predict/batch", json={"images": texts}).status_code == 200
