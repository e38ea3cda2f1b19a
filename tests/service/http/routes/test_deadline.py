"""A request has one deadline: what the choice of its labels takes, its photos have less."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.images.decode import DecodedImage
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.settings import Settings
from tests.support.serving import PHOTO, serve_app, to_base64

SIDE = 16
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "predict": ("/predict", {"image": to_base64(PHOTO)}),
    "batch": ("/predict/batch", {"images": [to_base64(PHOTO)] * 2}),
    "v2_photos": (
        "/v2/models/tiny/infer",
        {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1],
                     "data": [to_base64(PHOTO)]}]},
    ),
    "v2_pixels": (
        "/v2/models/tiny/infer",
        {"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, SIDE, SIDE, 3],
                     "data": [0] * (3 * SIDE * SIDE)}]},
    ),
}  # fmt: skip


class NotingPipeline(Pipeline):
    """Notes when the labels of a request are chosen, and the deadlines of its photos."""

    last_choice: float
    deadlines: list[float | None]

    async def select(self, question: Question) -> Selection:
        self.last_choice = asyncio.get_running_loop().time()
        return await super().select(question)

    async def predict(
        self, photo: bytes | DecodedImage, selection: Selection, deadline: float | None = None
    ) -> Prediction:
        self.deadlines.append(deadline)
        return await super().predict(photo, selection, deadline)


def open_noting(settings: Settings) -> Pipeline:
    pipeline = open_pipeline(settings)
    pipeline.__class__ = NotingPipeline
    return pipeline


@pytest.fixture(scope="module")
def client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(tiny_bundle.path, open_noting, label_store="memory") as client:
        yield client


@pytest.mark.parametrize("route", ROUTES)
def test_deadline_counts_from_before_the_labels_are_chosen(client: TestClient, route: str) -> None:
    pipeline = client.app.state.host.pipeline  # type: ignore[attr-defined]
    pipeline.deadlines = []
    path, body = ROUTES[route]

    response = client.post(path, json=body)

    assert response.status_code == 200, response.text
    assert pipeline.deadlines
    for deadline in pipeline.deadlines:
        assert deadline <= pipeline.last_choice + pipeline.settings.deadline_ms / 1000
