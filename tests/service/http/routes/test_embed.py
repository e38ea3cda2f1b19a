"""Embeddings of photos in `/predict`, `/embed` and `/v1/embeddings`, and of texts in two towers."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.http.routes.embed import MAX_TEXTS
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, send_image, send_images, serve_app, to_base64
from tests.support.tiny_bundle import EMBEDDING_WIDTH, WIDTH, open_card, open_draft, write_draft

BUNDLE = "open_bundle"
PHOTOS = [make_photo(seed) for seed in range(3)]
IMAGES = [to_base64(photo) for photo in PHOTOS]
URLS = [f"data:image/png;base64,{image}" for image in IMAGES]
V1 = "/v1/embeddings"


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A model with CLIP's kind of head. Real towers have texts and photos of one width."""
    draft = open_draft(open_card("towers", kind="clip"))
    with serve_app(write_draft(tmp_path_factory.mktemp("x"), draft).path) as client:
        yield client


def embed(client: TestClient, photos: Sequence[bytes] = PHOTOS, **options: Any) -> Any:
    return client.post("/embed", files=[("images", photo) for photo in photos], **options)


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
    one = client.post(V1, json={"input": [URLS[0], "data:image/png;base64,AAAA"]})
    assert "Input 2 of 2" in assert_problem(one, 400, "invalid_image")["detail"]


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
        *(
            (V1, {"input": value}, 422, "invalid_parameters")
            for value in (None, [], "", [1, 2], [["x"]], ["x"] * (MAX_TEXTS + 1))
        ),
        (V1, {"input": URLS[:1] * 17}, 422, "too_many_images"),
        (V1, {"input": "data:image/png;base64,?"}, 400, "malformed_body"),
        (V1, {"input": "x", "model": "text-embedding-3-small"}, 404, "unknown_model"),
        (V1, {"input": "x", "truncate": True}, 422, "invalid_parameters"),
    ],
)
def test_wrong_request_is_refused(
    towers: TestClient, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    assert_problem(towers.post(path, content=content, headers=headers), status, code)
    good = {"input": "x", "model": "towers"}
    assert np.shape(read(towers.post(V1, json=good), "data")) == (1, EMBEDDING_WIDTH)


def test_texts_are_refused_without_a_shared_space(client: TestClient) -> None:
    for path, body in (("/embed", {"texts": ["x"], "images": IMAGES}), (V1, {"input": "x"})):
        assert_problem(client.post(path, json=body), 409, "no_shared_space")
