"""The app for tests: in this process, on a tiny bundle, with any fake in place of the pipeline."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.errors import ServiceError
from service.http.app import create_app
from service.pipeline.pipeline import open_pipeline
from service.pipeline.served import OpenPipeline, ServedPipeline
from service.settings import Settings
from tests.support.photos import make_photo

PROBLEM_JSON = "application/problem+json"
MAX_BODY_BYTES = 300_000
PHOTO = make_photo()


@contextmanager
def serve_app(
    bundle: Path,
    opener: OpenPipeline = open_pipeline,
    *,
    tracer_provider: Any = None,
    label_store: str = "memory",
    **settings: Any,
) -> Iterator[TestClient]:
    """Starts the app and waits until it has opened the bundle, or failed to."""
    given = Settings(bundle=bundle, device="cpu", label_store=label_store, **settings)
    app = create_app(ServedPipeline(given, opener), tracer_provider)
    # Not `http://testserver`: browsers may not use a service without keys under that name.
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        served = app.state.served
        while served.failure is None and client.get("/readyz").status_code != 200:
            pass
        yield client


def send_image(client: TestClient, photo: bytes | None = None, **options: Any) -> Any:
    """Posts one image as a form field and returns the response."""
    files = {"image": ("photo.png", PHOTO if photo is None else photo, "image/png")}
    return client.post("/predict", files=files, **options)


def send_images(client: TestClient, contents: list[bytes], **options: Any) -> Any:
    """Posts several images as form fields and returns the response."""
    files = [("images", (f"{i}.png", data, "image/png")) for i, data in enumerate(contents)]
    return client.post("/predict/batch", files=files, **options)


def send_examples(
    client: TestClient,
    path: str,
    positive: Sequence[bytes] = (),
    negative: Sequence[bytes] = (),
    **options: Any,
) -> Any:
    """Posts photos with and without a label as form fields and returns the response."""
    groups = [("positive", each) for each in positive] + [("negative", each) for each in negative]
    return client.post(path, files=groups, **options)


def assert_method_refused(client: Any, method: str, path: str, allowed: str) -> None:
    """Checks that a path refuses a method, and names those that it takes."""
    response = client.request(method, path)
    assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allowed


def list_errors(base: type[ServiceError] = ServiceError) -> list[type[ServiceError]]:
    """Returns `base` and all classes below it."""
    return [base, *(error for child in base.__subclasses__() for error in list_errors(child))]


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Checks that a response is this problem, and returns it."""
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM_JSON), (
        response.text
    )
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["code"]) == (status, code), problem
    assert problem["type"] == f"urn:ml-decoder:problem:{code}"
    assert problem["title"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return problem


def assert_still_serving(client: TestClient) -> None:
    """Checks that a good request is answered."""
    response = send_image(client, params={"top_k": 1})
    assert response.status_code == 200, response.text
    assert len(response.json()["labels"]) == 1


def labels_of(response: Any) -> list[tuple[str, float]]:
    """Returns the labels of a good answer with their scores, in its order."""
    assert response.status_code == 200, response.text
    return [(label["label"], label["score"]) for label in response.json()["labels"]]
