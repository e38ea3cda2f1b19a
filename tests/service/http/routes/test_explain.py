"""`explain`: maps and overlays of both kinds of labels, or a fixed problem."""

import base64
import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from service.bundle.reader import Bundle
from service.question import MAX_EXPLAINED
from tests.support.serving import PHOTO, assert_problem, send_image, send_images, serve_app

BUNDLE = "mapped_bundle"
PNG_URL = "data:image/png;base64,"


def ask(client: TestClient, **parameters: Any) -> list[dict[str, Any]]:
    response = send_image(client, params=parameters)
    assert response.status_code == 200, response.text
    labels: list[dict[str, Any]] = response.json()["labels"]
    return labels


def assert_map(cells: Any) -> None:
    assert [len(row) for row in cells] == [4] * 4
    assert all(0 <= cell <= 1 and round(cell, 3) == cell for row in cells for cell in row)


def test_without_explain_the_answer_has_neither_map_nor_overlay(client: TestClient) -> None:
    for parameters in ({}, {"explain": "false"}):
        for label in ask(client, top_k=5, **parameters):
            assert list(label) == ["label", "score", "threshold", "found", "source", "calibrated"]


def test_every_trained_and_zero_shot_label_gets_its_map(client: TestClient) -> None:
    labels = ask(client, explain="true", top_k=99, candidate_labels=["moon"], label_set=["trained"])
    assert {label["source"] for label in labels} == {"trained", "zero_shot"}
    for label in labels:
        assert_map(label["map"])
        assert "overlay" not in label
    assert len({str(label["map"]) for label in labels}) > 1


def test_overlay_is_a_png_of_the_photos_proportions(client: TestClient) -> None:
    for label in ask(client, top_k=2, explain="overlay"):
        assert_map(label["map"])
        assert label["overlay"].startswith(PNG_URL)
        data = base64.b64decode(label["overlay"].removeprefix(PNG_URL), validate=True)
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.width / picture.height == pytest.approx(48 / 32, rel=0.02)
            assert picture.has_transparency_data


def test_only_the_best_labels_are_explained(client: TestClient) -> None:
    names = [f"thing {i}" for i in range(MAX_EXPLAINED + 3)]
    labels = ask(client, explain="true", top_k=len(names), candidate_labels=names)
    assert ["map" in label for label in labels] == [True] * MAX_EXPLAINED + [False] * 3


def test_info_says_which_labels_can_be_explained(client: TestClient) -> None:
    info = client.get("/info").json()
    assert (info["head"]["maps"], info["open_head"]["maps"]) == (True, True)


def test_bundle_without_maps_answers_with_a_fixed_problem(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path) as client:
        for response in (
            send_image(client, params={"explain": "true"}),
            send_images(client, [PHOTO], params={"explain": "overlay"}),
        ):
            assert_problem(response, 409, "no_maps")
