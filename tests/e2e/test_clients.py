"""A real server reads what clients in the field send, and refuses what it would have to guess."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo
from tests.support.serving import labels_of

PHOTO = make_photo()
BASE64 = base64.b64encode(PHOTO).decode()
MIME = base64.encodebytes(PHOTO).decode()  # a line break after each 76 characters
BOM = b"\xef\xbb\xbf"


@pytest.fixture(scope="module")
def server(open_bundle: Bundle) -> Iterator[ServerProcess]:
    with ServerProcess(*serve_command(open_bundle, "--label-store", "memory")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """After each test a good request must be answered."""
    with server.open_client() as client:
        yield client
        assert len(predict(client, "?top_k=1")) == 1


def predict(client: httpx.Client, query: str, data: Any = None) -> list[str]:
    response = client.post(f"/predict{query}", files={"image": PHOTO}, data=data)
    return sorted(name for name, _ in labels_of(response))


@pytest.mark.parametrize(
    ("query", "data", "labels"),
    [
        ("?candidate_labels=yak,newt,crow", {}, ["crow", "newt", "yak"]),
        ("", {"candidate_labels": "yak, newt"}, ["newt", "yak"]),
        ("?candidate_labels=yak,newt&candidate_labels=crow", {}, ["crow", "yak,newt"]),
        ("", {"candidate_labels": ["yak, newt", ""]}, ["yak, newt"]),
        ("?include=cat,dog&threshold=0", {}, ["cat", "dog"]),
        ("?include=cat&threshold=0", {"include": "", "top_k": ""}, ["cat"]),
        ("?top_k=&label_set=everyday&threshold=0", {}, ["chair", "lamp", "table"]),
        ("?candidate_labels=caf%C3%A9", {}, ["caf\u00e9"]),
        ("?candidate_labels=wooden_table", {}, ["wooden_table"]),
    ],
)
def test_texts_are_read_as_they_are_meant(
    client: httpx.Client, query: str, data: dict[str, Any], labels: list[str]
) -> None:
    asked = data if "threshold" in query else {**data, "threshold": "0"}
    assert predict(client, query, asked) == labels


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("candidate_labels=caf%E9", "Text should be UTF-8"),
        ("include=caf%E9", "Text should be UTF-8"),
        ("caf%E9=1", "Text should be UTF-8"),
        ("topk=3", "This name is unknown; did you mean 'top_k'? Known names: top_k, threshold, "),
        ("candidate_labels[]=cat", "This name is unknown; did you mean 'candidate_labels'? Known "),
    ],
)
def test_parameter_that_would_have_to_be_guessed_is_422(
    client: httpx.Client, query: str, reason: str
) -> None:
    response = client.post(f"/predict?{query}", files={"image": PHOTO})
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["reason"].startswith(reason)


@pytest.mark.parametrize(
    "image", [MIME, MIME.replace("\n", "\r\n"), f"data:image/png;base64,{BASE64}"]
)
def test_base64_of_other_writers_is_read(client: httpx.Client, image: str) -> None:
    plain = labels_of(client.post("/predict", json={"image": BASE64}))
    assert labels_of(client.post("/predict", json={"image": image})) == plain
    batch = client.post("/predict/batch", json={"images": [image]}).json()["results"][0]
    assert [(each["label"], each["score"]) for each in batch["labels"]] == plain
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}
    assert client.post("/v2/models/tiny-open/infer", json={"inputs": [tensor]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"image": BASE64}),
        ("/predict/batch", {"images": [BASE64]}),
        ("/labels", {"name": "marked", "labels": ["yak"]}),
        (
            "/v2/models/tiny-open/infer",
            {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [BASE64]}]},
        ),
    ],
)
def test_json_may_begin_with_a_byte_order_mark(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    headers = {"Content-Type": "application/json"}
    response = client.post(path, content=BOM + json.dumps(body).encode(), headers=headers)
    assert response.status_code in (200, 201), response.text
