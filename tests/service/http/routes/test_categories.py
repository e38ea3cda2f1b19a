"""Categories of labels, in questions and in answers; bundles without them look as before."""

from fastapi.testclient import TestClient

from ml_decoder_client.answers import Answer, LabelSet, LabelSetList
from ml_decoder_client.reading import read_json
from service.bundle.reader import Bundle
from service.http.responses.schemas import PredictAnswer
from tests.support.serving import (
    PHOTO,
    assert_problem,
    labels_of,
    send_image,
    send_images,
    serve_app,
)

BUNDLE = "categorised_bundle"
CATEGORIES = {"cat": "general", "dog": "rating", "car": "vehicle", "tree": None, "person": "rating"}


def test_category_works_for_one_photo_and_a_batch(client: TestClient) -> None:
    asked = {"category": ["general", "vehicle"], "threshold": 0}
    query = send_image(client, params=asked)
    assert {name for name, _ in labels_of(query)} == {"cat", "car"}
    (result,) = send_images(client, [PHOTO], params=asked).json()["results"]
    assert result["labels"] == query.json()["labels"]


def test_answers_have_the_category_of_a_label_that_has_one(client: TestClient) -> None:
    response = send_image(client, params={"top_k": 9})
    categories = {
        label["label"]: label.get("category", "absent") for label in response.json()["labels"]
    }
    assert categories == {name: category or "absent" for name, category in CATEGORIES.items()}
    PredictAnswer.model_validate_json(response.text, strict=True)
    read = read_json(Answer, response.json())
    assert {label.label: label.category for label in read.labels} == CATEGORIES
    ratings = labels_of(send_image(client, params={"top_k": 9, "category": "rating"}))
    assert labels_of(send_image(client, params={"category": "rating"})) == ratings[:1]


def test_sets_and_the_card_show_categories(client: TestClient) -> None:
    counts = {"general": 1, "rating": 2, "vehicle": 1}
    listed = client.get("/labels").json()
    assert read_json(LabelSetList, listed).label_sets[0].category_counts == counts
    labels = client.get("/labels/trained").json()
    assert {
        label.name: label.category for label in read_json(LabelSet, labels).labels
    } == CATEGORIES
    assert ["category" in label for label in labels["labels"]].count(True) == 4
    card = client.get("/info").json()
    assert {label["name"]: label.get("category") for label in card["labels"]} == CATEGORIES


def test_unknown_category_is_422_with_the_known_ones(client: TestClient) -> None:
    problem = send_image(client, params={"category": "rating,raiting"})
    assert assert_problem(problem, 422, "unknown_category")["detail"] == (
        "'raiting'; did you mean 'rating'? Known categories: 'general', 'rating', 'vehicle'."
    )


def test_bundle_without_categories_looks_as_before(tiny_bundle: Bundle) -> None:
    for file in ("labels.json", "manifest.json"):
        assert "categor" not in (tiny_bundle.path / file).read_text()
    with serve_app(tiny_bundle.path) as client:
        problem = send_image(client, params={"category": "rating"})
        detail = assert_problem(problem, 422, "unknown_category")["detail"]
        assert detail == "'rating'. The labels of 'trained' have no categories."
        for path in ("/labels", "/labels/trained", "/info"):
            assert "categor" not in client.get(path).text
        assert "categor" not in send_image(client, params={"top_k": 9}).text
