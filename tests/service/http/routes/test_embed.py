"""Embeddings of photos in `/predict`, `/embed` and `/v1/embeddings`, and of texts in two towers."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from service.http.routes.embed import MAX_TEXTS
from service.http.routes.predict import MAX_BATCH_IMAGES
from tests.support.photos import make_photo
from tests.support.serving import (
    PHOTO,
    assert_problem,
    assert_still_serving,
    send_image,
    send_images,
    serve_app,
    to_base64,
)
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    OPEN_HEAD,
    WIDTH,
    open_card,
    open_draft,
    write_draft,
)

BUNDLE = "open_bundle"
PHOTOS = [make_photo(seed) for seed in range(3)]
DATA_URLS = [f"data:image/png;base64,{to_base64(photo)}" for photo in PHOTOS]
V1 = "/v1/embeddings"
PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def two_towers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A model with CLIP's kind of head. Real towers have texts and photos of one width."""
    head = OPEN_HEAD.model_copy(update={"kind": "clip"})
    card = open_card("towers").model_copy(update={"open_head": head})
    bundle = write_draft(tmp_path_factory.mktemp("towers"), open_draft(card))
    with serve_app(bundle.path) as client:
        yield client


def embed(client: TestClient, photos: Sequence[bytes] = PHOTOS, **options: Any) -> Any:
    return client.post("/embed", files=[("images", photo) for photo in photos], **options)


def read(response: Any, key: str = "images") -> NDArray[np.float64]:
    assert response.status_code == 200, response.text
    found = [each["embedding"] for each in response.json()[key]]
    return np.array([unpack(each) if isinstance(each, str) else each for each in found])


def unpack(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_all_routes_give_a_photo_the_same_embedding(client: TestClient) -> None:
    rows = read(embed(client))
    assert rows.shape == (len(PHOTOS), WIDTH)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    images = [to_base64(photo) for photo in PHOTOS]
    float_form = {"input": DATA_URLS, "user": "me", "dimensions": WIDTH}
    for response, key in (
        (embed(client, params={"encoding": "base64"}), "images"),
        (client.post("/embed", json={"images": images}), "images"),
        (send_images(client, PHOTOS, data={"embedding": "true"}), "results"),
        (client.post("/predict/batch", json={"images": images, "embedding": "base64"}), "results"),
        (client.post(V1, json=float_form), "data"),
    ):
        np.testing.assert_allclose(read(response, key), rows, atol=1e-7)
    answer = send_image(client, PHOTOS[0], params={"embedding": "true"}).json()
    assert [*answer][3:6] == ["image", "labels", "embedding"]
    np.testing.assert_allclose(answer["embedding"], rows[0], atol=1e-7)
    assert "embedding" not in send_image(client, params={"embedding": "false"}).json()


def test_photo_that_cannot_be_used_fails_alone(client: TestClient) -> None:
    answer = embed(client, [b"junk", PHOTO]).json()
    broken, fine = answer["images"]
    assert broken["error"]["code"] == "invalid_image"
    assert len(fine["embedding"]) == answer["width"] == WIDTH
    assert len(answer["encoder"]) == 64
    assert embed(client, [b"junk"]).json()["width"] is None
    one = client.post(V1, json={"input": [DATA_URLS[0], "data:image/png;base64,AAAA"]})
    assert "Input 2 of 2" in assert_problem(one, 400, "invalid_image")["detail"]


def test_texts_and_photos_keep_their_order_in_two_towers(two_towers: TestClient) -> None:
    texts = ["a cat", "one\nline, and another"]
    rows = read(two_towers.post("/embed", json={"texts": texts}), "texts")
    assert rows.shape == (2, EMBEDDING_WIDTH)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    alone = read(two_towers.post("/embed", json={"texts": texts[1]}), "texts")
    np.testing.assert_array_equal(alone, rows[1:])
    photos = read(embed(two_towers))
    mixed = [DATA_URLS[2], texts[0], DATA_URLS[0]]
    answer = two_towers.post(V1, json={"input": mixed, "encoding_format": "base64"}).json()
    assert (answer["object"], answer["model"]) == ("list", "towers")
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    for each, expected in zip(answer["data"], (photos[2], rows[0], photos[0]), strict=True):
        np.testing.assert_allclose(unpack(each["embedding"]), expected, atol=1e-6)


def test_rate_limit_counts_photos_but_no_texts(two_towers: TestClient) -> None:
    bundle = two_towers.app.state.host.pipeline.bundle  # type: ignore[attr-defined]
    with serve_app(bundle.path, rate_limit="10/minute") as limited:
        texts = limited.post("/embed", json={"texts": ["x"] * MAX_TEXTS})
        assert read(texts, "texts").shape[0] == MAX_TEXTS
        read(embed(limited))
        read(limited.post(V1, json={"input": DATA_URLS}), "data")
        assert_problem(embed(limited, PHOTOS * 2), 429, "rate_limited")
        read(embed(limited, PHOTOS[:1]))


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"json": {}}, 422, "missing_field"),
        ({"json": {"texts": []}}, 422, "missing_field"),
        ({"json": {"images": ["?"], "image": "?"}}, 422, "unknown_field"),
        ({"json": {"images": "?"}}, 400, "malformed_body"),
        ({"json": {"images": ["?"] * (MAX_BATCH_IMAGES + 1)}}, 422, "too_many_images"),
        ({"files": [("images", b"x")] * (MAX_BATCH_IMAGES + 1)}, 422, "too_many_images"),
        ({"json": {"texts": ["x"] * (MAX_TEXTS + 1)}}, 422, "invalid_parameters"),
        *(
            ({"json": {"texts": [text]}}, 422, "invalid_parameters")
            for text in ("", "x" * 1001, "x" * 999, 7, None)
        ),
        ({"content": b'{"texts": ["\\ud800"]}'}, 422, "invalid_parameters"),
        ({"json": {"texts": ["x"], "encoding": "hex"}}, 422, "invalid_parameters"),
        ({"json": {"texts": ["x"], "encoding": "float"}}, 422, "repeated_field"),
        ({"files": [("encoding", (None, "base64"))] * 2}, 422, "invalid_parameters"),
        ({"files": {"image": PHOTO}}, 422, "unknown_field"),
        (
            {"content": PHOTO, "headers": {"Content-Type": "image/png"}},
            415,
            "unsupported_media_type",
        ),
    ],
)
def test_wrong_body_is_refused(
    two_towers: TestClient, options: dict[str, Any], status: int, code: str
) -> None:
    headers = {"Content-Type": "application/json"} if options.keys() == {"content"} else {}
    sent = {"headers": headers, "params": {"encoding": "base64"}, **options}
    assert_problem(two_towers.post("/embed", **sent), status, code)
    assert_still_serving(two_towers)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_parameters"),
        *(({"input": value}, 422, "invalid_parameters") for value in ([], "", [1, 2], [["x"]])),
        ({"input": ["x"] * (MAX_TEXTS + 1)}, 422, "invalid_parameters"),
        ({"input": DATA_URLS[:1] * (MAX_BATCH_IMAGES + 1)}, 422, "too_many_images"),
        ({"input": "data:image/png;base64,?"}, 400, "malformed_body"),
        ({"input": "x", "model": "text-embedding-3-small"}, 404, "unknown_model"),
        ({"input": "x", "dimensions": EMBEDDING_WIDTH - 1}, 422, "invalid_parameters"),
        ({"input": "x", "encoding_format": "int8"}, 422, "invalid_parameters"),
        ({"input": "x", "truncate": True}, 422, "invalid_parameters"),
    ],
)
def test_wrong_request_of_openai_clients_is_refused(
    two_towers: TestClient, body: dict[str, Any], status: int, code: str
) -> None:
    problem = assert_problem(two_towers.post(V1, json=body), status, code)
    if code == "unknown_model":
        assert "use towers" in problem["detail"]
    good = {"input": "x", "model": "towers", "dimensions": EMBEDDING_WIDTH}
    assert read(two_towers.post(V1, json=good), "data").shape == (1, EMBEDDING_WIDTH)


def test_texts_are_refused_without_a_shared_space(client: TestClient) -> None:
    for response in (
        client.post("/embed", json={"texts": ["x"], "images": [to_base64(PHOTO)]}),
        client.post(V1, json={"input": "x"}),
    ):
        assert_problem(response, 409, "no_shared_space")
