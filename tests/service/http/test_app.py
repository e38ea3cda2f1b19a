"""Tests of the whole app: its life, and internal failures that must not leak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import Request, Response
from fastapi.testclient import TestClient
from starlette.middleware.base import RequestResponseEndpoint

from service.bundle.reader import Bundle
from service.errors import DeadlineExceeded, QueueFull, StartError
from service.http.app import create_app
from service.http.host import PipelineHost
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.settings import Settings
from tests.support.serving import (
    PHOTO,
    assert_method_refused,
    assert_problem,
    assert_still_serving,
    send_image,
    send_images,
    serve_app,
)


def test_wrong_path_method_and_media_type_are_problems(client: TestClient) -> None:
    for path in ("/nowhere", "/predict/", "/labels/", "/..%2f..%2fetc/passwd", "/%00"):
        assert_problem(client.get(path), 404, "not_found")
    assert_problem(client.post("/predict/"), 404, "not_found")
    for method in ("GET", "PUT", "TRACE"):
        assert_method_refused(client, method, "/predict", "POST")
    assert_method_refused(client, "DELETE", "/info", "GET")
    assert_method_refused(client, "POST", "/labels/zoo", "GET, PUT, DELETE")
    assert_method_refused(client, "PATCH", "/labels", "GET, POST")
    assert_method_refused(client, "POST", "/livez", "GET, HEAD")
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        headers = {"Content-Type": media_type}
        response = client.post("/predict", content=PHOTO, headers=headers)
        detail = assert_problem(response, 415, "unsupported_media_type")["detail"]
        assert "multipart/form-data, image/*, application/json" in detail
    raw_batch = client.post("/predict/batch", content=PHOTO, headers={"Content-Type": "image/png"})
    assert_problem(raw_batch, 415, "unsupported_media_type")


def test_app_works_below_other_middleware(tiny_bundle: Bundle) -> None:
    # Starlette's BaseHTTPMiddleware receives in tasks of its own.
    host = PipelineHost(Settings(bundle=tiny_bundle.path, device="cpu"), open_pipeline)
    app = create_app(host)

    @app.middleware("http")
    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    with TestClient(app) as client:
        while client.get("/readyz").status_code != 200:
            pass
        for _ in range(3):
            assert_still_serving(client)


def test_health_routes_answer_head(client: TestClient) -> None:
    for path in ("/livez", "/readyz"):
        asked = client.head(path)
        assert (asked.status_code, asked.content) == (200, b"")
    assert_still_serving(client)


def test_app_never_becomes_ready_if_the_bundle_cannot_be_opened() -> None:
    def fail(_settings: Settings) -> Pipeline:
        raise StartError("secret reason")

    with serve_app(Path("no-such-bundle"), fail) as client:
        response = client.get("/readyz")
        assert_problem(response, 503, "not_ready")
        assert "secret" not in response.text
        assert client.get("/livez").status_code == 200


class FailingPipeline(Pipeline):
    """Fails on photos with the name of an error."""

    failures: dict[bytes, Exception]

    async def predict(
        self, data: bytes, selection: Selection, deadline: float | None = None
    ) -> Prediction:
        if data in self.failures:
            raise self.failures[data]
        return await super().predict(data, selection, deadline)


def open_failing(settings: Settings) -> Pipeline:
    pipeline = open_pipeline(settings)
    pipeline.__class__ = FailingPipeline
    assert isinstance(pipeline, FailingPipeline)
    pipeline.failures = {
        b"full": QueueFull("secret"),
        b"late": DeadlineExceeded("secret"),
        b"bug": ZeroDivisionError("secret"),
    }
    return pipeline


@pytest.fixture(scope="module")
def failing_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(tiny_bundle.path, open_failing) as client:
        yield client


@pytest.mark.parametrize(
    ("data", "status", "code", "retry_after"),
    [
        (b"full", 429, "queue_full", "1"),
        (b"late", 504, "deadline_exceeded", None),
        (b"bug", 500, "internal_error", None),
    ],
)
def test_internal_failure_is_a_problem_without_its_message(
    failing_client: TestClient, data: bytes, status: int, code: str, retry_after: str | None
) -> None:
    for response in (send_image(failing_client, data), send_images(failing_client, [PHOTO, data])):
        assert_problem(response, status, code)
        assert response.headers.get("retry-after") == retry_after
        assert "secret" not in response.text
    assert_still_serving(failing_client)
