"""Tests of JSON written without pydantic against its pydantic models."""

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from service.http.responses.schemas import BatchAnswer, PredictAnswer
from service.http.routes import predict
from tests.support.serving import PHOTO, send_image, send_images
from tests.support.threads import PATIENCE_SECONDS

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


def test_event_loop_runs_between_the_images_of_a_batch(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, loop = predict._describe_image, client.portal.call(asyncio.get_running_loop)

    def wait_for_loop(prediction: Any) -> dict[str, Any]:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_SECONDS)
        return describe(prediction)

    with monkeypatch.context() as patch:
        patch.setattr(predict, "_describe_image", wait_for_loop)
        assert len(send_images(client, [PHOTO] * 5).json()["results"]) == 5
