"""Tests of the words `balanced`, `recall` and `precise` of `threshold`."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from tests.support.serving import PHOTO, assert_problem, send_examples, send_image, serve_app
from tests.support.tiny_bundle import (
    tiny_draft,
    write_learning_bundle,
    write_measured_bundle,
    write_screened_bundle,
)

BUNDLE = "measured_bundle"
BALANCED = {"cat": 0.55, "dog": 0.45, "chair": 0.25, "table": 0.7}
RECALL = {"cat": 0.0625, "dog": 0.35, "chair": 0.125, "table": 0.125}
PRECISE = {"cat": 0.5, "dog": 0.5, "chair": 0.65, "table": 0.7}


@pytest.fixture(scope="module")
def measured_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_measured_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.mark.parametrize(
    ("word", "expected"), [("balanced", BALANCED), ("recall", RECALL), ("precise", PRECISE)]
)
def test_labels_have_their_thresholds_of_the_purpose(
    client: TestClient, word: str, expected: dict[str, float]
) -> None:
    everything = send_image(client, params={"threshold": "0"}).json()["labels"]
    scores = {label["label"]: label["score"] for label in everything}
    wanted = {name: least for name, least in expected.items() if scores[name] >= least}
    found = send_image(client, params={"threshold": word}).json()["labels"]
    thresholds = {label["label"]: label["threshold"] for label in found}
    assert {name: least for name, least in thresholds.items() if name in expected} == wanted
    params = {"threshold": word, "include": "cat", "top_k": 1, "label_set": "trained"}
    assert all(
        label["calibrated"] == (word != "precise")
        for label in send_image(client, params=params).json()["labels"]
    )


def test_info_has_the_measured_thresholds(client: TestClient) -> None:
    info = client.get("/info").json()
    measured = [info["head"], info["open_head"], info["labels"][0]]
    assert [part["by_purpose"]["recall"]["threshold"] for part in measured] == [0.35, 0.125, 0.0625]


def test_bundle_of_an_older_schema_names_the_command_that_measures_precise(tmp_path: Path) -> None:
    with serve_app(write_screened_bundle(tmp_path).path) as client:
        response = send_image(client, params={"threshold": "precise", "candidate_labels": "yak"})
        detail = assert_problem(response, 422, "not_measured")["detail"]
        assert "measure `precise` with `ml-decoder export --bundle BUNDLE --open-photos" in detail
        params = {"threshold": "recall", "candidate_labels": "yak"}
        assert send_image(client, params=params).status_code == 200


def test_bundle_without_them_names_the_command_that_measures_them(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path) as client:
        for params, options in (
            ({}, "--photos FOLDER --open-photos FOLDER"),
            ({"label_set": "trained"}, "--photos FOLDER"),
            ({"candidate_labels": "yak"}, "--open-photos FOLDER"),
        ):
            response = send_image(client, params=params | {"threshold": "recall"})
            detail = assert_problem(response, 422, "not_measured")["detail"]
            assert f"`ml-decoder export --bundle BUNDLE {options} --out BUNDLE`" in detail
            assert send_image(client, params=params).status_code == 200


def test_labels_from_photos_without_an_open_head_name_no_command(tmp_path: Path) -> None:
    bundle = write_learning_bundle(tmp_path, tiny_draft())
    with serve_app(bundle.path) as client:
        assert send_examples(client, "/labels/mine/examples?label=mug", [PHOTO]).is_success
        asked = {"label_set": "mine", "threshold": "recall"}
        detail = assert_problem(send_image(client, params=asked), 422, "not_measured")["detail"]
        assert detail == "'mine': send a number or `calibrated`."
        assert send_image(client, params={"label_set": "mine"}).status_code == 200
