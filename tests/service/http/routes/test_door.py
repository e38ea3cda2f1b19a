"""While the queue is full, predictions are refused at the door; everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import QueueFull
from service.scheduling.queue import BatchQueue
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image, serve_app

ORIGIN = "https://a.example"


def refuse(_queue: object) -> None:
    full = QueueFull("the queue is full")
    full.retry_after_seconds = 6.2
    raise full


@pytest.fixture
def client(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A service whose queue is full, with room again at the end."""
    with serve_app(tiny_bundle.path, cors_origins=ORIGIN) as client:
        assert_still_serving(client)
        with monkeypatch.context() as patch:
            patch.setattr(BatchQueue, "check_room", refuse)
            yield client
        assert_still_serving(client)


@pytest.mark.parametrize("path", ["/predict", "/predict?top_k=0", "/predict/batch"])
def test_prediction_is_refused_whatever_it_holds(client: TestClient, path: str) -> None:
    for content in (b"", b"junk", b"x" * 3_000_000):
        response = client.post(path, content=content, headers={"X-Request-ID": "abc"})
        assert_problem(response, 429, "queue_full")
        assert response.json()["request_id"] == response.headers["x-request-id"] == "abc"
        assert response.headers["retry-after"] == "7"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_pages_of_permitted_origins_may_read_the_refusal(client: TestClient) -> None:
    response = send_image(client, headers={"Origin": ORIGIN})
    assert_problem(response, 429, "queue_full")
    assert response.headers["access-control-allow-origin"] == ORIGIN


def test_refusals_are_counted_under_their_route(client: TestClient) -> None:
    assert send_image(client).status_code == 429
    metrics = client.get("/metrics").text
    assert 'ml_decoder_rejected_total{reason="queue_full"} 1.0' in metrics
    assert 'request_seconds_count{method="POST",path="/predict",status="429"} 1.0' in metrics


def test_what_needs_no_place_is_answered(client: TestClient) -> None:
    for path in ("/labels", "/info", "/readyz", "/docs"):
        assert client.get(path).status_code == 200
    assert_problem(client.get("/predict"), 405, "method_not_allowed")


def test_predictions_are_answered_below_a_root_path_too(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path) as client:
        client.app.root_path = "/tags"  # type: ignore[attr-defined]
        for path in ("/predict", "/tags/predict"):
            response = client.post(path, content=PHOTO, headers={"Content-Type": "image/png"})
            assert response.status_code == 200, response.text


def test_prediction_that_is_no_post_is_left_to_the_framework(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path) as client:
        assert_problem(client.put("/predict", content=PHOTO), 405, "method_not_allowed")
        assert_still_serving(client)
