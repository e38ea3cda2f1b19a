"""A full queue refuses predictions before their bodies are read."""

import pytest

from service.bundle.reader import Bundle
from service.errors import QueueFull
from service.scheduling.queue import BatchQueue
from tests.support.serving import assert_problem, assert_still_serving, serve_app

ORIGIN = "https://a.example"


def refuse(_queue: object) -> None:
    full = QueueFull("the queue is full")
    full.retry_after_seconds = 6.2
    raise full


def test_prediction_is_refused_when_the_queue_is_full(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path, cors_origins=ORIGIN, root_path="/tags") as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchQueue, "check_room", refuse)
            for path in ("/predict?top_k=0", "/predict/batch", "/tags/predict"):
                response = client.post(path, content=b"x" * 3_000_000, headers={"Origin": ORIGIN})
                assert_problem(response, 429, "queue_full")
                assert response.headers["retry-after"] == "7"
                assert response.headers["access-control-allow-origin"] == ORIGIN
        assert_still_serving(client)
