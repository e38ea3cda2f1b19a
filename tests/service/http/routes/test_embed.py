"""Embeddings of photos in `/predict`, `/embed` and `/v1/embeddings`, and of texts in two towers."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.http.app import create_app
from service.http.routes.embed import MAX_TEXTS
from service.labels.encoders import TextEncoder
from service.pipeline.served import ServedPipeline
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, send_image, send_images, serve_app, to_base64
from tests.support.threads import Gate
from tests.support.tiny_bundle import EMBEDDING_WIDTH, WIDTH, open_card, open_draft, write_draft

BUNDLE = "open_bundle"
PHOTOS = [make_photo(seed) for seed in range(3)]
IMAGES = [to_base64(photo) for photo in PHOTOS]
URLS = [f"data:image/png;base64,{image}" for image in IMAGES]
V1 = "/v1/embeddings"
# As the packages openai 3.57, langchain-openai 1.7 and llama-index-embeddings-openai 0.6 send it.
HEADERS = {"Authorization": "Bearer none", "X-Stainless-Lang": "python", "User-Agent": "OpenAI"}
TOKENS = "check_embedding_ctx_length=False"
KEY = "predict-key-000001"


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A model with CLIP's kind of head. Real towers have texts and photos of one width."""
    draft = open_draft(open_card("towers", kind="clip"))
    with serve_app(write_draft(tmp_path_factory.mktemp("x"), draft).path) as client:
        yield client


def embed(client: TestClient, photos: Sequence[bytes] = PHOTOS, **options: Any) -> Any:
    return client.post("/embed", files=[("images", photo) for photo in photos], **options)


def assert_openai_error(response: Any, status: int, code: str) -> str:
    """Checks that a response is this error in the shape of OpenAI's API, and returns its text."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert [*error] == ["message", "type", "code", "param"]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert (error["type"], error["code"]) == (kind, code)
    repeats = response.headers["x-should-retry"]  # else clients repeat 409 and 504 too
    assert repeats == str("retry-after" in response.headers).lower()
    return f"{error['param']}: {error['message']}"


def read(response: Any, key: str = "images") -> Any:
    """Returns the embeddings, [n, D] if they are of one width."""
    assert response.status_code == 200, response.text
    embeddings = [item["embedding"] for item in response.json()[key]]
    return [
        np.frombuffer(base64.b64decode(item), "<f4") if isinstance(item, str) else np.array(item)
        for item in embeddings
    ]


def test_all_routes_give_a_photo_the_same_embedding(client: TestClient) -> None:
    rows = read(embed(client))
    assert np.shape(rows) == (len(PHOTOS), WIDTH)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    openai = {"input": URLS, "user": "me"}
    for response, key in (
        (embed(client, params={"encoding": "base64"}), "images"),
        (client.post("/embed", json={"images": IMAGES}), "images"),
        (send_images(client, PHOTOS, data={"embedding": "true"}), "results"),
        (client.post("/predict/batch", json={"images": IMAGES, "embedding": "base64"}), "results"),
        (client.post(V1, json=openai), "data"),
    ):
        np.testing.assert_allclose(read(response, key), rows, atol=1e-7)
    answer = send_image(client, PHOTOS[0], params={"embedding": "true"}).json()
    assert [*answer][3:6] == ["image", "labels", "embedding"]
    np.testing.assert_allclose(answer["embedding"], rows[0], atol=1e-7)
    assert "embedding" not in send_image(client, params={"embedding": "false"}).json()


def test_photo_that_cannot_be_used_fails_alone_or_is_named(client: TestClient) -> None:
    answer = embed(client, [b"junk", PHOTOS[0]]).json()
    broken, fine = answer["images"]
    assert broken["error"]["code"] == "invalid_image"
    assert len(fine["embedding"]) == answer["width"] == WIDTH
    assert embed(client, [b"junk"]).json()["width"] is None
    one = client.post(V1, json={"input": [URLS[0], "data:image/png;base64,anVuaw=="]})
    message = assert_openai_error(one, 400, "invalid_image")
    assert message == "input.1: The file is damaged or is not an image. Input 2 of 2"


def test_texts_and_photos_keep_their_order_in_two_towers(towers: TestClient) -> None:
    texts = ["a cat", "one\nline, and another"]
    rows = read(towers.post("/embed", json={"images": [], "texts": texts}), "texts")
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 1], atol=1e-6)
    form = towers.post("/embed", files=[("texts", (None, text)) for text in texts])
    np.testing.assert_array_equal(read(form, "texts"), rows)
    photos = read(embed(towers))
    mixed = {"input": [URLS[2], texts[0], URLS[0]], "encoding_format": "base64"}
    response = towers.post(V1, json=mixed)
    mixed_rows = np.concatenate(read(response, "data"))
    np.testing.assert_allclose(mixed_rows, [*photos[2], *rows[0], *photos[0]], atol=1e-6)
    assert [item["index"] for item in response.json()["data"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/embed", {}, 422, "missing_field"),
        ("/embed", {"texts": []}, 422, "missing_field"),
        ("/embed", {"texts": ["x"] * (MAX_TEXTS + 1)}, 422, "invalid_parameters"),
        ("/embed", {"texts": ["x" * 999]}, 422, "invalid_labels"),
        *(
            ("/embed", {"texts": [text]}, 422, "invalid_parameters")
            for text in ("", "x" * 1001, 7, None, "\ud800")
        ),
        ("/embed?encoding=hex", {"texts": ["x"]}, 422, "invalid_parameters"),
    ],
)
def test_wrong_request_is_refused(
    towers: TestClient, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    assert_problem(towers.post(path, content=content, headers=headers), status, code)
    assert len(read(towers.post("/embed", json={"texts": ["x"]}), "texts")) == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        *(
            ({"input": value}, 422, "invalid_parameters", "input")
            for value in (None, [], "", "\ud800", ["x"] * (MAX_TEXTS + 1))
        ),
        ({"input": [1, 2]}, 422, "invalid_parameters", TOKENS),
        ({"input": [["x"], [1]]}, 422, "invalid_parameters", TOKENS),
        ({"input": [0] * 500_002}, 400, "malformed_body", "values"),
        ({"input": "x", "dimensions": 256}, 400, "other_width", f"send {EMBEDDING_WIDTH}"),
        ({"input": URLS[:1] * 17}, 422, "too_many_images", "at most 16"),
        ({"input": "data:image/png;base64,?"}, 400, "malformed_body", "Input 1 of 1"),
        ({"input": "x", "model": "text-embedding-3-small"}, 404, "unknown_model", "use towers"),
        ({"input": "x", "truncate": True}, 422, "invalid_parameters", "unknown"),
    ],
)
def test_wrong_request_of_a_client_of_openai_is_refused(
    towers: TestClient, body: dict[str, Any], status: int, code: str, words: str
) -> None:
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    response = towers.post(V1, content=content, headers=headers)
    assert words in assert_openai_error(response, status, code)
    good = {"input": "x", "model": "towers"}
    assert np.shape(read(towers.post(V1, json=good), "data")) == (1, EMBEDDING_WIDTH)


def test_texts_are_refused_without_a_shared_space(client: TestClient) -> None:
    answer = client.post("/embed", json={"texts": ["x"], "images": IMAGES})
    assert_problem(answer, 409, "no_shared_space")
    assert_openai_error(client.post(V1, json={"input": "x"}), 409, "no_shared_space")


@pytest.mark.parametrize(
    "body",
    [
        {"input": ["x"], "encoding_format": "base64", "dimensions": EMBEDDING_WIDTH},
        {"input": "x", "encoding_format": None, "dimensions": None, "user": None, "extra": None},
        {"input": URLS[0], "dimensions": WIDTH, "encoding_format": "float"},
    ],
)
def test_request_of_a_client_of_openai_is_answered(
    towers: TestClient, body: dict[str, Any]
) -> None:
    (listed,) = towers.get("/v1/models", headers=HEADERS).json()["data"]
    assert (listed["id"], listed["object"]) == ("towers", "model")
    answer = towers.post(V1, json={"model": listed["id"], **body}, headers=HEADERS)
    width = WIDTH if body["input"] == URLS[0] else EMBEDDING_WIDTH
    assert np.shape(read(answer, "data")) == (1, width)


def test_each_16_texts_count_one_and_late_ones_name_the_option(
    towers: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Settings = towers.app.state.served.settings  # type: ignore[attr-defined]
    with serve_app(settings.bundle, rate_limit="200/hour", deadline_ms=4000) as client:
        texts = [f"text {number}" for number in range(MAX_TEXTS)]
        rows = read(client.post(V1, json={"input": texts}), "data")  # 128 units
        few = client.post("/embed", json={"texts": texts[1::1000]})  # 1 unit
        np.testing.assert_allclose(rows[1::1000], read(few, "texts"))
        with monkeypatch.context() as patch:
            gate = Gate(patch, TextEncoder, "encode")
            late = client.post(V1, json={"input": texts[:32]})  # 2 units
            gate.open()
        assert "chunk_size" in assert_openai_error(late, 504, "deadline_exceeded")
        assert client.post(V1, json={"input": texts[: 68 * 16 + 1]}).status_code == 200
        assert_openai_error(client.post(V1, json={"input": "x"}), 429, "rate_limited")


def test_refusals_below_v1_have_the_shape_of_openai(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path, predict_keys=KEY, root_path="/tags") as client:
        headers = {"X-API-Key": KEY}
        assert_openai_error(client.get(f"/tags{V1}"), 405, "method_not_allowed")
        assert_problem(client.get("/v10/engines"), 404, "not_found")
        other = client.post(V1, content=b"x", headers=headers)
        assert_openai_error(other, 415, "unsupported_media_type")
    with TestClient(create_app(ServedPipeline(Settings()))) as client:
        assert_openai_error(client.post(V1, json={"input": "x"}), 503, "not_ready")
