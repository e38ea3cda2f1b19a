"""What PhotoPrism and clients of the wd14 tagger are answered."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from tests.support.photos import make_photo
from tests.support.serving import PHOTO, assert_problem, labels_of, send_image, serve_app, to_base64

VISION = "/api/v1/vision/labels"
TAGGER = "/tagger/v1"
KEY = "predict-key-000001"
BUNDLE = "categorised_bundle"


def test_photoprism_gets_the_best_score_of_all_pictures_in_the_users_language(
    worded_bundle: Bundle,
) -> None:
    pictures, wanted = [PHOTO, make_photo(1), make_photo(2)], dict[str, tuple[float, Any]]()
    with serve_app(worded_bundle.path, lang="de") as client:
        for picture in pictures:
            answer = send_image(client, picture, params={"parents": True}).json()
            for label in answer["labels"]:
                name = label.get("translation", label["label"])
                seen = label["score"], label.get("parent_translations", [])
                wanted[name] = max(seen, wanted.get(name, seen))
        answer = client.post(VISION, json={"images": [*map(to_base64, pictures)]}).json()
        labels = answer["result"]["labels"]
        assert {x["name"]: (x["confidence"], x["categories"]) for x in labels} == wanted
        assert (wanted["Katze"][1], wanted["tree"][1]) == (["pet", "Tier"], [])
        assert labels == sorted(labels, key=lambda label: -label["topicality"])
        rest = {"source": "image", "priority": 0, "nsfw": False, "nsfw_confidence": 0}
        assert labels[0].items() >= rest.items()
        assert answer["model"] == {"type": "labels", "name": "tiny-open", "version": "1.0"}


def test_photoprism_gets_an_empty_list_if_nothing_is_found(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path, default_label_set="mine") as client:
        client.put("/labels/mine", json={"labels": [{"name": "yak", "threshold": 1}]})
        answer = client.post(VISION, json={"images": [to_base64(PHOTO)], "id": "b"}).json()
        assert (answer["id"], answer["code"], answer["result"]) == ("b", 200, {"labels": []})


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (VISION, b'{"url": "https://a.example/x.jpg"}', 422, "'images'"),
        (VISION, rb'{"id": "\ud800", "images": ["?"]}', 422, "'id'"),
        (VISION, b'{"images": ["?"], "id": "b"}', 400, '"id":"b"'),
        (f"{TAGGER}/interrogate", b"{}", 422, "'image'"),
        (f"{TAGGER}/interrogate", b'{"image": ""}', 400, "The file is empty"),
        (f"{TAGGER}/interrogate", b'{"image": "", "threshold": 2}', 422, "'threshold'"),
    ],
)
def test_bad_request_is_refused(
    client: TestClient, path: str, body: bytes, status: int, says: str
) -> None:
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    assert says in response.text


def test_tagger_gives_all_ratings_and_tags_above_the_threshold(client: TestClient) -> None:
    scores = dict(labels_of(send_image(client, params={"top_k": 9})))
    found = dict(labels_of(send_image(client)))
    high = {name: score for name, score in scores.items() if score >= scores["cat"]}
    for sent, wanted in (
        ({}, found),
        ({"threshold": 0, "model": "wd14-convnext"}, scores),
        ({"threshold": scores["cat"]}, high),
        ({"threshold": 1}, {}),
    ):
        for image in (to_base64(PHOTO), f"data:image/png;base64,{to_base64(PHOTO)}"):
            answer = client.post(f"{TAGGER}/interrogate", json={"image": image, **sent}).json()
            ratings = {name: scores[name] for name in ("dog", "person")}
            tags = {name: score for name, score in wanted.items() if name not in ratings}
            assert answer["caption"] == {"tag": tags, "rating": ratings}
    unloaded = client.post(f"{TAGGER}/unload-interrogators", content=b"")
    assert unloaded.json() == "Successfully unload 0 model(s)"


def test_key_is_a_password_of_the_tagger_alone_and_not_for_pages_of_other_sites(
    tiny_bundle: Bundle,
) -> None:
    with serve_app(tiny_bundle.path, predict_keys=KEY) as client:
        path, body, basic = f"{TAGGER}/interrogate", {"image": to_base64(PHOTO)}, ("me", KEY)
        page = {"Origin": "https://b.example"}
        assert_problem(send_image(client, auth=basic), 401, "unauthorized")
        refused = client.post(path, json=body, auth=basic, headers=page)
        assert (refused.status_code, refused.json()["error"]) == (403, "cross_site")
        for header in ("Basic ?", "Basic bWU=", "Basic abc"):
            headers = {"Authorization": header}
            assert client.post(path, json=body, headers=headers).status_code == 401
        for bearer in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            assert client.post(path, json=body, headers=page | bearer).status_code == 200
        assert client.post(path, json=body, auth=basic).status_code == 200
