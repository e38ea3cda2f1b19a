"""A request has one deadline, which covers the choice of its labels and all of its photos."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pipeline.pipeline import Pipeline
from tests.support.serving import PHOTO, to_base64

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "predict": ("/predict", {"json": {"image": to_base64(PHOTO)}}),
    "batch": ("/predict/batch", {"json": {"images": [to_base64(PHOTO)] * 2}}),
    "calibrate": ("/labels/trained/calibrate?label=cat", {"files": [("positive", PHOTO)] * 2}),
    "v2": (
        "/v2/models/tiny/infer",
        {"json": {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1],
                              "data": [to_base64(PHOTO)]}]}},
    ),
}  # fmt: skip


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The deadlines that the pipeline gets: of the labels, then of each photo."""
    noted: list[float | None] = []

    def note_deadline(name: str) -> None:
        method = getattr(Pipeline, name)

        def note_and_call(*arguments: Any) -> Any:
            noted.append(arguments[-1])
            return method(*arguments)

        monkeypatch.setattr(Pipeline, name, note_and_call)

    note_deadline("select")
    note_deadline("predict")
    return noted


@pytest.mark.parametrize("route", ROUTES)
def test_labels_and_photos_share_one_deadline(
    client: TestClient, deadlines: list[float | None], route: str
) -> None:
    path, options = ROUTES[route]
    response = client.post(path, **options)
    assert response.status_code == 200, response.text
    if route == "calibrate":  # its labels are chosen before the photos are read
        deadlines.pop(0)
    assert len(deadlines) == (3 if route == "batch" else 2)
    assert isinstance(deadlines[0], float)
    assert len(set(deadlines)) == 1
