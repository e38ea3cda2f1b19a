"""All dialects: the laws of every route in each program's own shape, and which of them are on."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import QueueFull, StartError
from service.http.dialects.table import DIALECTS, choose_dialects
from service.scheduling.queue import BatchQueue
from tests.support.photos import make_photo
from tests.support.serving import MAX_BODY_BYTES, PHOTO, assert_problem, serve_app, to_base64

KEY, OTHER = "predict-key-000001", "predict-key-000002"
RATE = 25


class Program(NamedTuple):
    path: str
    write: Callable[[list[str]], dict[str, Any]]  # a request with photos in base64
    count: Callable[[Any], int]  # photos that an answer is of
    error: Callable[[int, Any], dict[str, Any]]  # the shape, by status and content
    scheme: str = "Bearer"


def to_urls(photos: list[str]) -> list[str]:
    return [f"data:image/jpeg;base64,{photo}" for photo in photos]


PROGRAMS = {
    "open-inference": Program(
        "/v2/models/tiny-open/infer",
        lambda photos: {
            "inputs": [
                {"name": "image", "datatype": "BYTES", "shape": [len(photos)], "data": photos}
            ]
        },
        lambda answer: answer["outputs"][0]["shape"][0],
        lambda _, sent: {"error": str(sent["error"])},
    ),
    "openai": Program(
        "/v1/embeddings",
        lambda photos: {"input": to_urls(photos)},
        lambda answer: len(answer["data"]),
        lambda _, sent: {"error": {"type": "invalid_request_error", **sent["error"]}},
    ),
    "photoprism": Program(
        "/api/v1/vision/labels",
        # As Go writes the struct of PhotoPrism.
        lambda photos: {
            **{"id": "7f1c", "version": "latest", "suffix": "", "stream": False},
            "images": to_urls(photos),
        },
        lambda answer: len(answer["result"]["labels"]) and 1,
        lambda status, sent: {"id": sent["id"], "code": status, "error": str(sent["error"])},
    ),
    "wd14": Program(
        "/tagger/v1/interrogate",
        lambda photos: {
            **{"image": photos[0], "model": "wd14-vit-v2-git", "threshold": 0},
            **{"queue": "", "name_in_queue": ""},
        },
        lambda answer: len(answer["caption"]["tag"]) and 1,
        lambda _, sent: {**sent, "detail": str(sent["detail"]), "body": "", "errors": ""},
        "Basic",
    ),
}


def authorise(scheme: str, key: str) -> dict[str, str]:
    sent = b64encode(f"anyone:{key}".encode()).decode() if scheme == "Basic" else key
    return {"Authorization": f"{scheme} {sent}"} if key else {}


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
    program = PROGRAMS[name]

    def send(*photos: bytes, key: str = KEY) -> Any:
        headers = authorise(program.scheme, key)
        body = program.write([*map(to_base64, photos)])
        return keyed.post(program.path, json=body, headers=headers)

    def fail(_queue: object) -> None:
        raise QueueFull("full", retry_after_seconds=3)

    def assert_refused(response: Any, status: int) -> None:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        assert response.json() == program.error(status, response.json())
        assert ("retry-after" in response.headers) == (status == 429)
        assert program.count(send(PHOTO).json()) == 1

    assert_refused(send(b"junk"), 400)
    assert_refused(send(PHOTO, key=""), 401)
    refused = send(PHOTO, key=KEY[:-1] + "x")
    assert refused.headers["www-authenticate"].partition(" ")[0] == program.scheme
    assert_refused(refused, 401)
    assert_refused(send(b"x" * MAX_BODY_BYTES), 413)
    answers = [send(PHOTO, key=OTHER).status_code for _ in range(RATE)]
    assert answers == [200] * RATE
    assert_refused(send(PHOTO, key=OTHER), 429)
    with monkeypatch.context() as patch:
        patch.setattr(BatchQueue, "check_room", fail)
        busy = send(b"x" * MAX_BODY_BYTES)  # whose body is not read
    assert_refused(busy, 429)
    assert_refused(keyed.put(program.path), 405)
    assert_refused(keyed.get(f"{DIALECTS[name].prefix}/nowhere"), 404)
    if name != "wd14":
        several = send(PHOTO, b"junk", PHOTO)
        assert "2 of 3" in several.text
        assert_refused(several, 400)
        assert_refused(send(*[PHOTO] * 17), 400 if name == "open-inference" else 422)
        several = send(*map(make_photo, range(6)))
        assert program.count(several.json()) == (1 if name == "photoprism" else 6)
        assert_refused(send(*[PHOTO] * 10), 429)  # each photo counts


def test_dialects_of_the_setting_answer_and_the_others_are_unknown(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path, dialects="wd14, open-inference") as client:
        paths = client.get("/openapi.json").json()["paths"]
        assert {path.split("/")[1] for path in paths} & {"v1", "v2", "api", "tagger"} == {
            *("v2", "tagger")
        }
        for path in ("/v1/models", "/api/v1/vision/labels"):
            assert_problem(client.get(path), 404, "not_found")
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/tagger/v1/interrogators").json() == {"models": ["tiny"]}
    with pytest.raises(StartError, match="'wd41' .* open-inference, openai, photoprism, wd14"):
        choose_dialects("openai,wd41")
