"""Tests of `/labels/{name}/examples`: a label learns and forgets; a refusal stores nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.http.responses.schemas import answer_label_set
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, assert_still_serving, send_image, serve_app
from tests.support.tiny_bundle import random_label_set, write_teachable_bundle

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


def read_label(client: TestClient) -> dict[str, Any]:
    label: dict[str, Any] = client.get("/labels/mine").json()["labels"][0]
    return label


def test_label_and_set_are_made_and_more_photos_add_up(client: TestClient) -> None:
    first = teach(client, PHOTOS[:2])
    assert (first.status_code, first.headers["location"]) == (201, "/labels/mine")
    answer = first.json()
    assert first.headers["etag"] == f'"{answer["label_set"]["version"]}"'
    assert answer["examples"] == {"positive": 2, "negative": 0, "added": 2, "repeated": 0}
    assert "at least 5" in answer["advice"]

    second = teach(client, [PHOTOS[0], *PHOTOS[2:6]], PHOTOS[6:8])
    answer = second.json()
    assert (second.status_code, len(answer["positive"]), len(answer["negative"])) == (200, 5, 2)
    assert answer["examples"] == {"positive": 6, "negative": 2, "added": 6, "repeated": 1}
    assert (answer["advice"], answer["calibrated"]) == (None, False)
    shown = read_label(client)["examples"]
    assert shown.pop("separation") == answer["separation"]
    assert shown == {"positive": 6, "negative": 2, "this_model": True}
    assert client.get("/labels").json()["label_sets"][-1]["num_learnt"] == 1
    found = send_image(client, PHOTOS[0], params={"label_set": "mine", "top_k": 1}).json()
    assert found["labels"][0]["source"] == "examples"
    assert found["labels"][0]["score"] == pytest.approx(answer["positive"][0]["score"], abs=1e-5)

    anew = teach(client, PHOTOS[8:9], path=f"{EXAMPLES}?label=mug&replace=true").json()
    assert anew["examples"] == {"positive": 1, "negative": 0, "added": 1, "repeated": 0}
    assert anew["separation"] == {"value": 3.0, "meaning": "unknown with one photo"}


def test_set_that_is_sent_back_keeps_its_examples(client: TestClient) -> None:
    assert teach(client, [], PHOTOS[:2]).status_code == 201, "negatives alone are enough"
    label, body = read_label(client), client.get("/labels/mine").json()
    assert "negative photos only" in label["examples"]["separation"]["meaning"]
    body["labels"].append("saucer")
    assert client.put("/labels/mine", json=body).is_success
    assert read_label(client) == label


def test_forgotten_examples_leave_the_label(client: TestClient) -> None:
    version = teach(client, PHOTOS[:2]).headers["etag"]
    forget = partial(client.delete, EXAMPLES, params={"label": "mug"})
    assert_problem(forget(headers={"If-Match": '"0"'}), 412, "label_set_changed")
    gone = forget(headers={"If-Match": version})
    assert gone.json() == client.get("/labels/mine").json()
    assert gone.headers["etag"] == f'"{gone.json()["version"]}"' != version
    assert (read_label(client)["name"], "examples" in read_label(client)) == ("mug", False)
    for label in ("mug", "cup"):
        assert_problem(forget(params={"label": label}), 404, "no_examples")
    none = client.delete("/labels/none/examples?label=mug")
    assert_problem(none, 404, "label_set_not_found")


TEN = [("positive", each) for each in (*PHOTOS[:3], b"junk", *PHOTOS[3:9])]
BOTH = [("positive", PHOTOS[1]), ("negative", PHOTOS[1])]
NAMED = {"invalid_image": "Photo 4 of 10 `positive`", "invalid_labels": "Photo 1 of `positive`"}
GOOD, STALE = {"positive": PHOTOS[1]}, {"If-Match": '"0"'}


@pytest.mark.parametrize(
    ("path", "options", "status", "code"),
    [
        ("everyday/examples?label=x", {"files": GOOD}, 409, "label_set_read_only"),
        ("trained/examples?label=x", {"files": GOOD}, 409, "label_set_read_only"),
        *(
            (f"mine/examples{query}", {"files": GOOD}, 422, "invalid_parameters")
            for query in ("", "?label=", "?label=mug&replace=perhaps", "?label=mug&text=x")
        ),
        *(
            ("mine/examples?label=mug", options, status, code)
            for options, status, code in (
                ({"files": {"label": (None, "mug")}}, 422, "unknown_field"),
                ({"content": b"--x--", "headers": FORM}, 422, "missing_field"),
                ({"json": {}}, 415, "unsupported_media_type"),
                ({"files": [("negative", b"x")] * 201}, 422, "too_many_images"),
                ({"files": TEN}, 400, "invalid_image"),
                ({"files": BOTH}, 422, "invalid_labels"),
                ({"files": GOOD, "headers": STALE}, 412, "label_set_changed"),
            )
        ),
    ],
)
def test_wrong_request_is_refused_and_nothing_is_learnt(
    client: TestClient, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    teach(client, PHOTOS[:1])
    before = client.get("/labels").json(), client.get("/labels/mine").json()
    problem = assert_problem(client.post(f"/labels/{path}", **options), status, code)
    if code in NAMED:
        assert NAMED[code] in problem["detail"]
    assert (client.get("/labels").json(), client.get("/labels/mine").json()) == before


def test_full_set_learns_no_other_label(client: TestClient) -> None:
    assert client.put("/labels/mine", json={"labels": ["mug", "b", "c"]}).is_success
    full = teach(client, PHOTOS[:1], path=f"{EXAMPLES}?label=fourth")
    assert_problem(full, 422, "invalid_labels")
    assert teach(client, PHOTOS[:1]).status_code == 200


def test_model_without_background_names_the_command(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path) as client:
        problem = assert_problem(teach(client, PHOTOS[:1]), 409, "no_background")
        assert "ml-decoder export --bundle BUNDLE --background FOLDER" in problem["detail"]
        assert client.get("/labels/mine").status_code == 404
        assert_still_serving(client)


def test_examples_of_another_model_are_shown_as_such() -> None:
    labels = replace(random_label_set(0, ["a", "b"]), foreign=frozenset({"b"}))
    own, other = answer_label_set(labels).labels
    assert own.examples is None
    assert other.examples is not None
    assert (other.examples.this_model, other.examples.positive) == (False, 0)


def test_only_keys_that_change_label_sets_teach(bundle: Bundle) -> None:
    keys = {"predict_keys": PREDICT["X-API-Key"], "admin_keys": ADMIN["X-API-Key"]}
    photo = {"images": PHOTOS[0]}
    with serve_app(bundle.path, **keys) as client:
        for headers, status in (({}, 401), (PREDICT, 403)):
            assert teach(client, PHOTOS[:1], headers=headers).status_code == status
            gone = client.delete(f"{EXAMPLES}?label=mug", headers=headers)
            assert gone.status_code == status
        assert client.post("/embed", files=photo).status_code == 401
        assert client.post("/embed", files=photo, headers=PREDICT).status_code == 200
        assert teach(client, PHOTOS[:1], headers=ADMIN).status_code == 201
