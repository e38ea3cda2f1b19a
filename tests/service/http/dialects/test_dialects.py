"""All dialects: the laws of every route in each program's own shape, and which of them are on."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import QueueFull, StartError
from service.http.dialects.table import DIALECTS, choose_dialects
from service.scheduling.queue import BatchQueue
from tests.support.serving import MAX_BODY_BYTES, PHOTO, assert_problem, serve_app, to_base64

KEY, OTHER = "predict-key-000001", "predict-key-000002"
RATE = 25


PATHS = {
    "open-inference": "/v2/models/tiny-open/infer",
    "openai": "/v1/embeddings",
    "photoprism": "/api/v1/vision/labels",
    "wd14": "/tagger/v1/interrogate",
}
MEMBERS = {"photoprism": ["id", "code", "error"], "wd14": ["error", "detail", "body", "errors"]}


def write_request(name: str, photos: list[str]) -> dict[str, Any]:
    """Returns a request as the program sends it, with fields that say nothing to us."""
    urls = [f"data:image/jpeg;base64,{photo}" for photo in photos]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(photos)], "data": photos}
    bodies: dict[str, dict[str, Any]] = {
        "open-inference": {"inputs": [tensor]},
        "openai": {"input": urls},
        "photoprism": {"id": "7f1c", "version": "x", "suffix": "", "stream": False, "images": urls},
        "wd14": {"image": photos[0], "model": "wd14-vit-v2-git", "threshold": 0, "queue": ""},
    }
    return bodies[name]


@pytest.fixture(scope="module")
def keyed(worded_bundle: Bundle) -> Iterator[TestClient]:
    settings = {"predict_keys": f"{KEY},{OTHER}", "rate_limit": f"{RATE}/hour"}
    with serve_app(worded_bundle.path, **settings, max_body_bytes=MAX_BODY_BYTES) as client:
        yield client


@pytest.mark.parametrize("name", DIALECTS)
def test_errors_have_the_programs_shape_and_the_next_request_is_answered(
    keyed: TestClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keyed.app.state.rates._full_at.clear()  # type: ignore[attr-defined]

    def send(*photos: bytes, key: str = KEY) -> Any:
        basic = b64encode(f"anyone:{key}".encode()).decode()
        sent = f"Basic {basic}" if name == "wd14" else f"Bearer {key}"
        body = write_request(name, [*map(to_base64, photos)])
        return keyed.post(PATHS[name], json=body, headers={"Authorization": sent} if key else {})

    def fail(_queue: object) -> None:
        raise QueueFull("full", retry_after_seconds=3)

    def assert_refused(response: Any, status: int) -> None:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        assert [*response.json()] == MEMBERS.get(name, ["error"])
        assert response.json().get("code", status) == status
        assert ("retry-after" in response.headers) == (status == 429)
        assert send(PHOTO).status_code == 200

    assert_refused(send(b"junk"), 400)
    assert_refused(send(PHOTO, key=""), 401)
    unknown = send(PHOTO, key=KEY[:-1] + "x")
    assert unknown.headers["www-authenticate"][:5] == ("Basic" if name == "wd14" else "Beare")
    assert_refused(unknown, 401)
    assert_refused(send(b"x" * MAX_BODY_BYTES), 413)
    answers = [send(PHOTO, key=OTHER).status_code for _ in range(RATE)]
    assert answers == [200] * RATE
    assert_refused(send(PHOTO, key=OTHER), 429)
    with monkeypatch.context() as patch:
        patch.setattr(BatchQueue, "check_room", fail)
        busy = send(b"x" * MAX_BODY_BYTES)  # whose body is not read
    assert_refused(busy, 429)
    assert_refused(keyed.put(PATHS[name]), 405)
    assert_refused(keyed.get(f"{DIALECTS[name].prefix}/nowhere"), 404)
    if name != "wd14":
        broken = send(PHOTO, b"junk", PHOTO)
        assert "2 of 3" in broken.text
        assert_refused(broken, 400)
        assert_refused(send(*[PHOTO] * 17), 400 if name == "open-inference" else 422)
        assert send(PHOTO, PHOTO, PHOTO).status_code == 200
        assert_refused(send(*[PHOTO] * 16), 429)  # each photo counts


def test_dialects_of_the_setting_answer_and_the_others_are_unknown(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path, dialects="wd14, open-inference") as client:
        parts = {path.split("/")[1] for path in client.get("/openapi.json").json()["paths"]}
        assert parts & {"v1", "v2", "api", "tagger"} == {"v2", "tagger"}
        for path in ("/v1/models", "/api/v1/vision/labels"):
            assert_problem(client.get(path), 404, "not_found")
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/tagger/v1/interrogators").json() == {"models": ["tiny"]}
    with pytest.raises(StartError, match=r"'wd41' .* open-inference, openai, photoprism, wd14"):
        choose_dialects("openai,wd41")
