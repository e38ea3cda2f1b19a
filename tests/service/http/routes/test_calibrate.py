"""Tests of `POST /labels/{name}/calibrate`, and of `PATCH`, which keeps what it found."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.photos import make_photo
from tests.support.serving import assert_problem, labels_of, send_examples, send_image
from tests.support.tiny_bundle import EMBEDDING_WIDTH

BUNDLE = "open_bundle"
PETS = {
    "name": "pets",
    "labels": ["cat", {"name": "quux", "embedding": [0.5] * EMBEDDING_WIDTH, "threshold": 0.2}],
}
CALIBRATE = "/labels/pets/calibrate"


@pytest.fixture
def client(shared_client: TestClient) -> Iterator[TestClient]:
    """The app with the set `pets`; it must still calibrate after each test."""
    assert shared_client.put("/labels/pets", json=PETS).is_success
    yield shared_client
    assert calibrate(shared_client, [make_photo(0)]).status_code == 200


def calibrate(
    client: TestClient,
    positive: Sequence[bytes],
    negative: Sequence[bytes] = (),
    label: str = "quux",
    **params: Any,
) -> Any:
    return send_examples(client, CALIBRATE, positive, negative, params={"label": label, **params})


def rank_photos(client: TestClient, label: str) -> list[tuple[float, bytes]]:
    """Returns photos by their score, the best first."""
    params = {"label_set": "pets", "include": label, "top_k": 1}
    photos = [make_photo(seed) for seed in range(10)]
    scored = [
        (labels_of(send_image(client, photo, params=params))[0][1], photo) for photo in photos
    ]
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("label", ["cat", "quux"])
def test_threshold_of_separable_photos_separates_them(client: TestClient, label: str) -> None:
    ranked = rank_photos(client, label)
    photos = [photo for _, photo in ranked]
    answer = calibrate(client, photos[:4], photos[4:], label).json()
    assert (answer["label_set"]["name"], answer["label"]) == ("pets", label)
    best = answer["best"]
    assert (best["precision"], best["recall"]) == (1.0, 1.0)
    assert best["threshold"] == pytest.approx((ranked[3][0] + ranked[4][0]) / 2, abs=2e-6)
    scores = [photo["score"] for photo in answer["positive"] + answer["negative"]]
    assert scores == pytest.approx([score for score, _ in ranked], abs=2e-6)
    sure = calibrate(client, photos[:4], photos[4:], label, precision_target=0.99).json()
    assert sure["best"] is None, "four photos prove no precision of 99 %"


def test_present_threshold_is_measured(client: TestClient) -> None:
    ranked = rank_photos(client, "quux")
    photos = [photo for _, photo in ranked]
    above = sum(score >= 0.2 for score, _ in ranked)
    current = calibrate(client, photos[::2], photos[1::2]).json()["current"]
    hits = (above + 1) // 2
    assert current["threshold"] == 0.2
    assert current["precision"] == (pytest.approx(hits / above) if above else None)
    assert current["recall"] == pytest.approx(hits / 5)
    high = {"labels": [{"name": "quux", "threshold": 1}]}
    assert client.patch("/labels/pets", json=high).status_code == 200
    none = calibrate(client, photos[::2], photos[1::2]).json()["current"]
    assert none == {"threshold": 1.0, "precision": None, "recall": 0.0}


def test_photo_that_cannot_be_used_fails_alone(client: TestClient) -> None:
    good = make_photo(1)
    answer = calibrate(client, [b"junk", good], [b"", good]).json()
    for group, code in (("positive", "invalid_image"), ("negative", "empty_image")):
        broken, fine = answer[group]
        assert broken["error"]["code"] == code
        assert 0 <= fine["score"] <= 1
    useless = calibrate(client, [b"junk"], [good]).json()
    assert (useless["current"], useless["best"]) == (None, None)


GOOD = {"positive": make_photo()}


@pytest.mark.parametrize(
    ("query", "options", "status", "code"),
    [
        ("none/calibrate?label=cat", {"files": GOOD}, 404, "label_set_not_found"),
        ("pets/calibrate?label=cut", {"files": GOOD}, 422, "unknown_label"),
        ("pets/calibrate", {"files": GOOD}, 422, "invalid_parameters"),
        *(
            (f"pets/calibrate?label=cat&{more}", {"files": GOOD}, 422, "invalid_parameters")
            for more in ("precision_target=0", "precision_target=nan", "labels=cat")
        ),
        ("pets/calibrate?label=cat", {"files": {"negative": make_photo()}}, 422, "missing_field"),
    ],
)
def test_wrong_set_label_precision_or_body_is_refused(
    client: TestClient, query: str, options: dict[str, Any], status: int, code: str
) -> None:
    assert_problem(client.post(f"/labels/{query}", **options), status, code)


def test_found_threshold_is_kept_and_all_else_stays(client: TestClient) -> None:
    ranked = rank_photos(client, "quux")
    photos = [photo for _, photo in ranked]
    measured = calibrate(client, photos[:4], photos[4:]).json()
    version, best = measured["label_set"]["version"], measured["best"]["threshold"]

    change = {"labels": [{"name": "quux", "threshold": best}]}
    headers = {"If-Match": f'"{version}"'}
    kept = client.patch("/labels/pets", json=change, headers=headers)

    assert kept.status_code == 200
    assert kept.headers["etag"] == f'"{kept.json()["version"]}"'
    cat, quux = kept.json()["labels"]
    assert (quux["threshold"], quux["calibrated"], quux["own_embedding"]) == (best, True, True)
    assert cat["calibrated"] is False
    assert rank_photos(client, "quux") == ranked
    stale = client.patch("/labels/pets", json=change, headers=headers)
    assert_problem(stale, 412, "label_set_changed")


@pytest.mark.parametrize(
    ("path", "labels", "status", "code"),
    [
        ("/labels/none", [{"name": "cat", "threshold": 0.5}], 404, "label_set_not_found"),
        ("/labels/trained", [{"name": "cat", "threshold": 0.5}], 409, "label_set_read_only"),
        ("/labels/pets", [{"name": "cut", "threshold": 0.5}], 422, "unknown_label"),
        ("/labels/pets", [{"name": "cat", "threshold": 0.5}] * 2, 422, "invalid_labels"),
        ("/labels/pets", [{"name": "cat", "threshold": True}], 422, "invalid_parameters"),
        ("/labels/pets", [{"name": "cat"}], 422, "invalid_parameters"),
        ("/labels/pets", [], 422, "invalid_parameters"),
        ("/labels/pets", [""] * 50_001, 422, "invalid_labels"),  # before each is checked
    ],
)
def test_wrong_change_of_thresholds_is_refused(
    client: TestClient, path: str, labels: list[Any], status: int, code: str
) -> None:
    before = client.get("/labels/pets").json()
    assert_problem(client.patch(path, json={"labels": labels}), status, code)
    assert client.get("/labels/pets").json() == before
