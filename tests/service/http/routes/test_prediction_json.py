"""Tests of JSON written without pydantic against its pydantic models."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from service.http.responses.schemas import BatchAnswer, PredictAnswer
from service.http.routes.predict import write_batch
from service.pipeline.pipeline import Pipeline
from service.question import Question
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


def test_event_loop_runs_between_the_images_of_a_batch(client: TestClient) -> None:
    pipeline: Pipeline = client.app.state.served.pipeline  # type: ignore[attr-defined]

    async def count_turns() -> int:
        selection = await pipeline.select(Question())
        results = [await pipeline.predict(PHOTO, selection)] * 5
        writing = asyncio.create_task(write_batch(pipeline, selection, results, "id"))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert client.portal.call(count_turns) >= 5
