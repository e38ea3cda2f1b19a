"""Tests of `/labels/{name}/examples`: a label learns and forgets; a refusal stores nothing."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.http.requests.uploads import MAX_EXAMPLES
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, assert_still_serving, send_image, serve_app
from tests.support.tiny_bundle import write_teachable_bundle

PHOTOS = [make_photo(seed) for seed in range(12)]
EXAMPLES = "/labels/mine/examples"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
ADMIN, PREDICT = {"X-API-Key": "admin-key-00000001"}, {"X-API-Key": "predict-key-000001"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_teachable_bundle(tmp_path_factory.mktemp("teachable"))


@pytest.fixture(scope="module")
def teachable(bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(bundle.path, max_labels_per_set=3, max_pixels=300_000) as client:
        yield client


@pytest.fixture
def client(teachable: TestClient) -> Iterator[TestClient]:
    """The app without the set `mine`; it must still teach after each test."""
    teachable.delete("/labels/mine")
    yield teachable
    assert teach(teachable, PHOTOS[:1], path="/labels/last/examples?label=x").is_success
    assert_still_serving(teachable)


def teach(
    client: TestClient,
    positive: Sequence[bytes] = (),
    negative: Sequence[bytes] = (),
    *,
    path: str = f"{EXAMPLES}?label=mug",
    **options: Any,
) -> Any:
    files = [
        *(("positive", ("photo", photo)) for photo in positive),
        *(("negative", ("photo", photo)) for photo in negative),
    ]
    return client.post(path, files=files, **options)


def read_examples(client: TestClient) -> dict[str, Any] | None:
    """Returns the examples of `mug` as `GET` shows them; None without the set or examples."""
    labels = client.get("/labels/mine").json().get("labels", [])
    found: dict[str, Any] | None = next((each.get("examples") for each in labels), None)
    return found


def test_label_and_set_are_made_and_more_photos_add_up(client: TestClient) -> None:
    first = teach(client, PHOTOS[:2])
    assert (first.status_code, first.headers["location"]) == (201, "/labels/mine")
    answer = first.json()
    assert first.headers["etag"] == f'"{answer["label_set"]["version"]}"'
    assert answer["examples"] == {"positive": 2, "negative": 0, "added": 2, "repeated": 0}
    assert (len(answer["positive"]), answer["negative"]) == (2, [])
    assert "at least 5" in answer["advice"]
    assert answer["calibrated"] is False

    second = teach(client, [PHOTOS[0], *PHOTOS[2:6]], PHOTOS[6:8])
    assert second.status_code == 200
    answer = second.json()
    assert answer["examples"] == {"positive": 6, "negative": 2, "added": 6, "repeated": 1}
    assert answer["advice"] is None
    assert answer["separation"]["meaning"].endswith("told apart from other photos")
    shown = read_examples(client)
    assert shown == {
        **{"positive": 6, "negative": 2, "this_model": True},
        "separation": answer["separation"],
    }
    (summary,) = (s for s in client.get("/labels").json()["label_sets"] if s["name"] == "mine")
    assert summary["num_learnt"] == 1
    found = send_image(client, PHOTOS[0], params={"label_set": "mine", "top_k": 1}).json()
    assert found["labels"][0]["source"] == "examples"
    assert found["labels"][0]["score"] == pytest.approx(answer["positive"][0]["score"], abs=1e-5)

    anew = teach(client, PHOTOS[8:9], path=f"{EXAMPLES}?label=mug&replace=true").json()
    assert anew["examples"] == {"positive": 1, "negative": 0, "added": 1, "repeated": 0}
    assert anew["separation"] == {"value": 3.0, "meaning": "unknown with one photo"}


def test_set_that_is_sent_back_keeps_its_examples(client: TestClient) -> None:
    assert teach(client, [], PHOTOS[:2]).status_code == 201, "negatives alone are enough"
    shown, body = read_examples(client), client.get("/labels/mine").json()
    assert shown is not None
    assert "without positive" in shown["separation"]["meaning"]
    body["labels"].append("saucer")
    assert client.put("/labels/mine", json=body).is_success
    assert read_examples(client) == shown


def test_forgotten_examples_leave_the_label(client: TestClient) -> None:
    version = teach(client, PHOTOS[:2]).headers["etag"]
    stale = client.delete(EXAMPLES, params={"label": "mug"}, headers={"If-Match": '"0"'})
    assert_problem(stale, 412, "label_set_changed")
    gone = client.delete(EXAMPLES, params={"label": "mug"}, headers={"If-Match": version})
    assert gone.status_code == 200, gone.text
    assert gone.json() == client.get("/labels/mine").json()
    assert gone.headers["etag"] == f'"{gone.json()["version"]}"' != version
    assert [each["name"] for each in gone.json()["labels"]] == ["mug"]
    assert read_examples(client) is None
    for label in ("mug", "cup"):
        assert client.delete(EXAMPLES, params={"label": label}).status_code == 404
    none = client.delete("/labels/none/examples", params={"label": "mug"})
    assert_problem(none, 404, "label_set_not_found")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/labels/everyday/examples?label=x", 409, "label_set_read_only"),
        ("/labels/trained/examples?label=x", 409, "label_set_read_only"),
        (EXAMPLES, 422, "invalid_parameters"),
        (f"{EXAMPLES}?label=", 422, "invalid_parameters"),
        (f"{EXAMPLES}?label=mug&replace=perhaps", 422, "invalid_parameters"),
        (f"{EXAMPLES}?label=mug&text=x", 422, "invalid_parameters"),
    ],
)
def test_wrong_set_or_parameter_is_refused(
    client: TestClient, path: str, status: int, code: str
) -> None:
    assert_problem(client.post(path, files={"positive": PHOTOS[0]}), status, code)


@pytest.mark.parametrize(
    ("options", "status", "code", "detail"),
    [
        ({"files": {"label": (None, "mug")}}, 422, "unknown_field", "positive"),
        ({"content": b"--x--", "headers": FORM}, 422, "missing_field", "positive"),
        ({"json": {"positive": []}}, 415, "unsupported_media_type", "multipart"),
        ({"files": [("negative", b"x")] * (MAX_EXAMPLES + 1)}, 422, "too_many_images", "200"),
        (
            {"files": [("positive", each) for each in (*PHOTOS[:3], b"junk", *PHOTOS[3:9])]},
            *(400, "invalid_image", "Photo 4 of 10 `positive`"),
        ),
        (
            {"files": [("positive", PHOTOS[1]), ("negative", PHOTOS[1])]},
            *(422, "invalid_labels", "Photo 1 of `positive`"),
        ),
        (
            {"files": {"positive": PHOTOS[1]}, "headers": {"If-Match": '"0"'}},
            *(412, "label_set_changed", ""),
        ),
    ],
)
def test_bad_photos_are_refused_and_nothing_is_learnt(
    client: TestClient, options: dict[str, Any], status: int, code: str, detail: str
) -> None:
    teach(client, PHOTOS[:1])
    before = client.get("/labels/mine").json()
    response = client.post(EXAMPLES, params={"label": "mug"}, **options)
    assert detail in assert_problem(response, status, code)["detail"]
    assert client.get("/labels/mine").json() == before


def test_full_set_learns_no_other_label(client: TestClient) -> None:
    assert client.put("/labels/mine", json={"labels": ["mug", "b", "c"]}).is_success
    assert teach(client, PHOTOS[:1], path=f"{EXAMPLES}?label=fourth").status_code in (409, 422)
    assert teach(client, PHOTOS[:1]).status_code == 200


def test_model_without_background_names_the_command(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path) as client:
        problem = assert_problem(teach(client, PHOTOS[:1]), 409, "no_background")
        assert "ml-decoder export --bundle BUNDLE --background FOLDER" in problem["detail"]
        assert client.get("/labels/mine").status_code == 404
        assert_still_serving(client)


def test_only_keys_that_change_label_sets_teach(bundle: Bundle) -> None:
    keys = {"predict_keys": PREDICT["X-API-Key"], "admin_keys": ADMIN["X-API-Key"]}
    with serve_app(bundle.path, **keys) as client:
        for headers, status in (({}, 401), (PREDICT, 403)):
            assert teach(client, PHOTOS[:1], headers=headers).status_code == status
            gone = client.delete(EXAMPLES, params={"label": "mug"}, headers=headers)
            assert gone.status_code == status
        assert client.post("/embed", files={"images": PHOTOS[0]}).status_code == 401
        assert client.post("/v1/embeddings", json={"input": "x"}).status_code == 401
        assert teach(client, PHOTOS[:1], headers=ADMIN).status_code == 201
        assert client.post("/embed", files={"images": PHOTOS[0]}, headers=PREDICT).is_success
