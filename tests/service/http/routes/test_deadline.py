"""A request has one deadline, which covers the choice of its labels and all of its photos."""

from __future__ import annotations

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


class RecordingPipeline(Pipeline):
    """Records the deadlines of a request."""

    deadlines: list[float | None]

    async def select(self, question: Question, deadline: float | None = None) -> Selection:
        self.deadlines = [deadline]
        return await super().select(question, deadline)

    async def predict(
        self, photo: bytes | DecodedImage, selection: Selection, deadline: float | None = None
    ) -> Prediction:
        self.deadlines.append(deadline)
        return await super().predict(photo, selection, deadline)


def open_recording(settings: Settings) -> Pipeline:
    pipeline = open_pipeline(settings)
    pipeline.__class__ = RecordingPipeline
    return pipeline


@pytest.fixture(scope="module")
def client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(tiny_bundle.path, open_recording, label_store="memory") as client:
        yield client


@pytest.mark.parametrize("route", ROUTES)
def test_labels_and_photos_share_one_deadline(client: TestClient, route: str) -> None:
    pipeline = client.app.state.host.pipeline  # type: ignore[attr-defined]
    path, body = ROUTES[route]

    response = client.post(path, json=body)

    assert response.status_code == 200, response.text
    assert len(pipeline.deadlines) == (3 if route == "batch" else 2)
    assert pipeline.deadlines[0] is not None
    assert len(set(pipeline.deadlines)) == 1
