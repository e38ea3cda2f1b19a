"""Tests of `threshold=balanced` and `threshold=recall`."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from tests.support.serving import (
    PHOTO,
    assert_problem,
    send_image,
    send_images,
    serve_app,
    to_base64,
)
from tests.support.tiny_bundle import EMBEDDING_WIDTH, write_measured_bundle

BUNDLE = "measured_bundle"
BALANCED = {"cat": 0.55, "dog": 0.45, "chair": 0.25, "table": 0.7}
RECALL = {"cat": 0.0625, "dog": 0.35, "chair": 0.125, "table": 0.125}


@pytest.fixture(scope="module")
def measured_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_measured_bundle(tmp_path_factory.mktemp("bundle"))


def list_thresholds(answer: dict[str, Any]) -> dict[str, float]:
    assert all(label["score"] >= label["threshold"] for label in answer["labels"])
    return {label["label"]: label["threshold"] for label in answer["labels"]}


@pytest.mark.parametrize(("word", "expected"), [("balanced", BALANCED), ("recall", RECALL)])
def test_labels_have_their_thresholds_of_the_purpose_in_each_form_of_request(
    client: TestClient, word: str, expected: dict[str, float]
) -> None:
    everything = send_image(client, params={"threshold": "0"}).json()["labels"]
    scores = {label["label"]: label["score"] for label in everything}
    answers = [
        send_image(client, params={"threshold": word}),
        send_image(client, data={"threshold": word}),
        client.post("/predict", json={"image": to_base64(PHOTO), "threshold": word}),
    ]
    batch = send_images(client, [PHOTO], params={"threshold": word}).json()["results"]
    wanted = {name: least for name, least in expected.items() if scores[name] >= least}
    assert wanted
    for answer in (*(response.json() for response in answers), *batch):
        found = list_thresholds(answer)
        assert {name: least for name, least in found.items() if name in expected} == wanted


def test_registered_and_candidate_labels_take_the_open_heads(client: TestClient) -> None:
    own = {"name": "quux", "embedding": [0.5] * EMBEDDING_WIDTH, "threshold": 0.0}
    labels = ["yak", own, {"name": "newt", "threshold": 1.0}]
    assert client.put("/labels/pets", json={"labels": labels}).is_success
    answer = send_image(client, params={"threshold": "recall", "label_set": "pets"}).json()
    found = list_thresholds(answer)
    assert found.items() <= {"yak": 0.125, "quux": 0.0, "newt": 0.125}.items()
    assert found["quux"] == 0.0
    params = {"threshold": "recall", "candidate_labels": "lemur"}
    answer = send_image(client, params=params).json()
    assert list_thresholds(answer).items() <= {"lemur": 0.125}.items()


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_purpose_is_no_threshold_of_a_registered_label(client: TestClient, method: str) -> None:
    assert client.put("/labels/zoo", json={"labels": ["yak"]}).is_success
    body = {"labels": [{"name": "yak", "threshold": "balanced"}]}
    response = client.request(method, "/labels/zoo", json=body)
    problem = assert_problem(response, 422, "invalid_parameters")
    assert problem["errors"][0]["name"] == "labels.0.threshold"
    answer = send_image(client, params={"threshold": "balanced", "label_set": "zoo"})
    assert list_thresholds(answer.json()).items() <= {"yak": 0.25}.items()


def test_info_has_the_measured_thresholds(client: TestClient) -> None:
    info = client.get("/info").json()
    for part, threshold in (
        (info["head"], 0.35),
        (info["open_head"], 0.125),
        (info["labels"][0], 0.0625),
    ):
        point = {"threshold": threshold, "precision": 0.6, "recall": 0.8}
        assert part["by_purpose"]["recall"] == point
    assert "by_purpose" not in info["labels"][1]


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({}, "--photos FOLDER --open-photos FOLDER"),
        ({"label_set": "trained"}, "--photos FOLDER"),
        ({"candidate_labels": "yak"}, "--open-photos FOLDER"),
    ],
)
def test_bundle_without_them_names_the_command_that_measures_them(
    open_bundle: Bundle, params: dict[str, str], options: str
) -> None:
    with serve_app(open_bundle.path) as client:
        problem = assert_problem(
            send_image(client, params=params | {"threshold": "recall"}), 422, "not_measured"
        )
        assert f"ml-decoder export --bundle BUNDLE {options} --out BUNDLE" in problem["detail"]
        assert send_image(client, params=params).status_code == 200
