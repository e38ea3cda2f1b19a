"""A full queue refuses predictions before their bodies are read."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import QueueFull
from service.scheduling.queue import BatchQueue
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image, serve_app

ORIGIN = "https://a.example"
ROOT_PATH = "/tags"


def refuse(_queue: object) -> None:
    full = QueueFull("the queue is full")
    full.retry_after_seconds = 6.2
    raise full


@pytest.fixture(scope="module")
def full_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    """A service below a root path whose queue is full; at the end it answers below both paths."""
    with serve_app(tiny_bundle.path, cors_origins=ORIGIN, root_path=ROOT_PATH) as client:
        assert_still_serving(client)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchQueue, "check_room", refuse)
            yield client
        for path in ("/predict", f"{ROOT_PATH}/predict"):
            response = client.post(path, content=PHOTO, headers={"Content-Type": "image/png"})
            assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "path", ["/predict", "/predict?top_k=0", "/predict/batch", f"{ROOT_PATH}/predict"]
)
def test_prediction_is_refused_when_the_queue_is_full(full_client: TestClient, path: str) -> None:
    for content in (b"", b"junk", b"x" * 3_000_000):
        response = full_client.post(path, content=content, headers={"X-Request-ID": "abc"})
        assert_problem(response, 429, "queue_full")
        assert response.json()["request_id"] == response.headers["x-request-id"] == "abc"
        assert response.headers["retry-after"] == "7"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_pages_of_permitted_origins_may_read_the_refusal(full_client: TestClient) -> None:
    response = send_image(full_client, headers={"Origin": ORIGIN})
    assert_problem(response, 429, "queue_full")
    assert response.headers["access-control-allow-origin"] == ORIGIN
