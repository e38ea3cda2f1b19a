"""Tests of JSON written without pydantic against its pydantic models."""

import json
from threading import get_ident

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from service.http.responses.schemas import BatchAnswer, PredictAnswer
from service.http.routes import predict
from service.pipeline import prediction
from tests.support.serving import PHOTO, send_image, send_images

BUNDLE = "mapped_bundle"
NAMES = ["Füchse 🦊", 'quo"te\\', "赤い"]


def assert_described(model: type[BaseModel], text: str) -> None:
    """Checks that every value of the answer is valid, and that it has no others."""
    answer = json.loads(text)
    assert model.model_validate_json(text, strict=True).model_dump(exclude_unset=True) == answer


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"top_k": 1},
        {"threshold": 1.0},
        {"threshold": 0.25},
        {"candidate_labels": NAMES, "label_set": "trained", "threshold": 0.0},
        {"explain": "true", "top_k": 2},
        {"explain": "overlay", "top_k": 2},
    ],
)
def test_answer_of_one_image_fits_its_model(
    client: TestClient, parameters: dict[str, object]
) -> None:
    response = send_image(client, params=parameters)
    assert response.status_code == 200, response.text
    assert_described(PredictAnswer, response.text)
    if "candidate_labels" in parameters:
        assert {*NAMES} < {label["label"] for label in response.json()["labels"]}


def test_answer_of_a_batch_with_a_failure_fits_its_model(client: TestClient) -> None:
    response = send_images(client, [PHOTO, b"junk"], params={"top_k": 2, "explain": "true"})
    assert_described(BatchAnswer, response.text)
    good, bad = response.json()["results"]
    assert [len(label["map"]) for label in good["labels"]] == [4, 4]
    assert bad["error"]["code"] == "invalid_image"


@pytest.mark.parametrize("in_loop", [True, False])
def test_long_answer_is_described_in_a_side_thread_and_is_the_same(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, *, in_loop: bool
) -> None:
    round_value, loop_thread, threads = prediction._round, client.portal.call(get_ident), set[int]()

    def remember(value: float) -> float:
        threads.add(get_ident())
        return round_value(value)

    asked = {"threshold": 0}
    expected = send_image(client, params=asked).json()["labels"]
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "_round", remember)
        patch.setattr(predict, "_MAX_INLINE_LABELS", 2 * len(expected) if in_loop else 1)
        one = send_image(client, params=asked)
        batch = send_images(client, [PHOTO] * 2, params=asked)
    assert_described(PredictAnswer, one.text)
    assert_described(BatchAnswer, batch.text)
    results = [one.json(), *batch.json()["results"]]
    assert [result["labels"] for result in results] == [expected] * 3
    assert [thread == loop_thread for thread in threads] == [in_loop] * len(threads)
