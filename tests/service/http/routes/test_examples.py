"""Tests of `/labels/{name}/examples`: labels learn, examples are deleted, errors store nothing."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from tests.support.photos import make_photo
from tests.support.serving import assert_problem, send_examples, send_image, serve_app

BUNDLE, SETTINGS = "learning_bundle", {"max_labels_per_set": 3}
PHOTOS = [make_photo(seed) for seed in range(12)]
EXAMPLES = "/labels/mine/examples?label=mug"


@pytest.fixture
def mine(client: TestClient) -> Iterator[TestClient]:
    """The app whose set `mine` has learnt `mug` from a photo; it must learn after each test."""
    client.delete("/labels/mine")
    assert learn(client, PHOTOS[:1]).status_code == 201
    yield client
    assert learn(client, PHOTOS[:1]).is_success


def learn(client: TestClient, positive: Sequence[bytes], *more: Any, **options: Any) -> Any:
    return send_examples(client, EXAMPLES, positive, *more, **options)


def read_set(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/labels/mine").json()
    return found


def test_label_and_set_are_made_and_more_photos_add_up(client: TestClient) -> None:
    first = learn(client, PHOTOS[:2])
    assert (first.status_code, first.headers["location"]) == (201, "/labels/mine")
    answer = first.json()
    assert first.headers["etag"] == f'"{answer["label_set"]["version"]}"'
    assert answer["examples"] == {"positive": 2, "negative": 0, "added": 2, "repeated": 0}
    assert "have little in common" in answer["advice"]  # the tiny model sees no likeness

    second = learn(client, [PHOTOS[0], *PHOTOS[2:6]], PHOTOS[6:8])
    answer = second.json()
    assert (second.status_code, len(answer["positive"]), len(answer["negative"])) == (200, 5, 2)
    assert answer["examples"] == {"positive": 6, "negative": 2, "added": 6, "repeated": 1}
    assert ("at least 5" in answer["advice"], answer["calibrated"]) == (False, False)
    shown = read_set(client)["labels"][0]["examples"]
    assert shown.pop("separation") == answer["separation"]
    assert shown == {"positive": 6, "negative": 2, "this_model": True}
    assert client.get("/labels").json()["label_sets"][-1]["num_learnt"] == 1
    found = send_image(client, PHOTOS[0], params={"label_set": "mine", "top_k": 1}).json()
    assert found["labels"][0]["source"] == "examples"
    assert found["labels"][0]["score"] == pytest.approx(answer["positive"][0]["score"], abs=1e-5)


def test_photo_as_base64_is_the_same_photo(mine: TestClient) -> None:
    texts = [base64.b64encode(photo) for photo in PHOTOS[:2]]
    assert learn(mine, texts).json()["examples"]["repeated"] == 1
    scored = send_examples(mine, EXAMPLES.replace("examples", "calibrate"), texts).json()
    assert [[*photo] for photo in scored["positive"]] == [["score"]] * 2


def test_replaced_and_negative_examples_survive_a_put(mine: TestClient) -> None:
    anew = send_examples(mine, f"{EXAMPLES}&replace=true", [], PHOTOS[8:9]).json()
    assert anew["examples"] == {"positive": 0, "negative": 1, "added": 1, "repeated": 0}
    body = read_set(mine)
    assert "negative photos only" in body["labels"][0]["examples"]["separation"]["meaning"]
    again = mine.put("/labels/mine", json={**body, "labels": [*body["labels"], "cup"]})
    assert again.json()["labels"][0] == body["labels"][0]


def test_deleted_examples_leave_the_label(mine: TestClient) -> None:
    stale = mine.delete(EXAMPLES, headers={"If-Match": '"0"'})
    assert_problem(stale, 412, "label_set_changed")
    current = {"If-Match": f'"{read_set(mine)["version"]}"'}
    gone = mine.delete(EXAMPLES, headers=current)
    assert gone.json() == read_set(mine)
    assert gone.headers["etag"] == f'"{gone.json()["version"]}"' != current["If-Match"]
    (label,) = gone.json()["labels"]
    assert (label["name"], "examples" in label) == ("mug", False)
    for label in ("mug", "cup"):
        none = mine.delete("/labels/mine/examples", params={"label": label})
        assert_problem(none, 404, "no_examples")
    assert_problem(mine.delete("/labels/no/examples?label=x"), 404, "label_set_not_found")


GOOD, FORM = {"positive": PHOTOS[1]}, {"Content-Type": "multipart/form-data; boundary=x"}
TEN = [("positive", each) for each in (*PHOTOS[:3], b"junk", *PHOTOS[3:9])]
BOTH = [("positive", PHOTOS[1]), ("negative", PHOTOS[1])]


@pytest.mark.parametrize(
    ("path", "options", "status", "code"),
    [
        ("everyday/examples?label=x", {"files": GOOD}, 409, "label_set_read_only"),
        ("trained/examples?label=x", {"files": GOOD}, 409, "label_set_read_only"),
        ("mine/examples", {"files": GOOD}, 422, "invalid_parameters"),
        ("mine/examples?label=mug&text=x", {"files": GOOD}, 422, "invalid_parameters"),
        ("mine/examples?label=mug&label=cup", {"files": GOOD}, 422, "invalid_parameters"),
        ("mine/examples?label=m", {"files": {"label": (None, "m")}}, 422, "unknown_field"),
        ("mine/examples?label=m", {"content": b"--x--", "headers": FORM}, 422, "missing_field"),
        ("mine/examples?label=m", {"json": {}}, 415, "unsupported_media_type"),
        ("mine/examples?label=m", {"files": [*BOTH * 100, *BOTH]}, 422, "too_many_images"),
        ("mine/examples?label=Photo 4 of 10", {"files": TEN}, 400, "invalid_image"),
        ("mine/examples?label=Photo 1 of", {"files": BOTH}, 422, "invalid_labels"),
    ],
)
def test_wrong_request_is_refused_and_nothing_is_learnt(
    mine: TestClient, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    before = read_set(mine)
    problem = assert_problem(mine.post(f"/labels/{path}", **options), status, code)
    if "Photo" in path:
        assert problem["detail"].startswith(path.partition("=")[2])
    assert read_set(mine) == before
    stale = learn(mine, PHOTOS[1:2], headers={"If-Match": '"0"'})
    assert_problem(stale, 412, "label_set_changed")


def test_full_set_learns_no_other_label(mine: TestClient) -> None:
    assert mine.put("/labels/mine", json={"labels": ["mug", "b", "c"]}).is_success
    full = send_examples(mine, "/labels/mine/examples?label=fourth", PHOTOS[:1])
    assert_problem(full, 422, "invalid_labels")


def test_model_without_background_names_the_command(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path) as client:
        problem = assert_problem(learn(client, PHOTOS[:1]), 409, "no_background")
        assert "ml-decoder export --bundle BUNDLE --background FOLDER" in problem["detail"]
        assert client.put("/labels/mine", json={"labels": ["mug"]}).status_code == 201
