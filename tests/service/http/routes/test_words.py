"""Languages and parents: words of questions, translations in answers, sets that keep them."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from ml_decoder_client.answers import Answer
from ml_decoder_client.reading import read_json
from service.bundle.reader import Bundle
from service.http.responses.schemas import BatchAnswer, LabelSetAnswer, PredictAnswer
from tests.support.serving import PHOTO, assert_problem, send_image, send_images, serve_app

BUNDLE = "worded_bundle"
ALL = {"top_k": 99}


def names(response: Any) -> set[str]:
    assert response.status_code == 200, response.text
    return {label["label"] for label in response.json()["labels"]}


def test_answers_have_translations_and_parents_if_asked_for(client: TestClient) -> None:
    plain = send_image(client, params=ALL).json()
    asked = send_image(client, params=ALL | {"lang": "de-AT", "parents": True})
    answer = asked.json()
    assert "translation" not in str(plain)
    assert "parents" not in str(plain)
    PredictAnswer.model_validate_json(asked.text, strict=True)
    read_json(Answer, answer)
    by_name = {label["label"]: label for label in answer["labels"]}
    cat = {"translation": "Katze", "parents": ["pet", "animal"]}
    assert by_name["cat"].items() >= {**cat, "parent_translations": ["pet", "Tier"]}.items()
    assert not {"translation", "parents"} & by_name["tree"].keys()
    added = {"translation", "parents", "parent_translations"}
    same = [{k: v for k, v in label.items() if k not in added} for label in answer["labels"]]
    assert same == plain["labels"]
    batch = send_images(client, [PHOTO], params=ALL | {"lang": "de", "include": "Katze"})
    BatchAnswer.model_validate_json(batch.text, strict=True)
    assert batch.json()["resolved"] == {"Katze": "cat"}


@pytest.mark.parametrize(
    ("asked", "found", "resolved"),
    [
        ({"include": "puss,dog"}, {"cat", "dog"}, {"puss": "cat"}),
        (
            {"include": "katze,Hound", "lang": "de"},
            {"cat", "dog"},
            {"katze": "cat", "Hound": "dog"},
        ),
        ({"include": "chat", "lang": "fr"}, {"cat"}, {"chat": "cat"}),
        ({"parent": "animal"}, {"cat", "dog"}, None),
        ({"parent": "Tier", "lang": "de"}, {"cat", "dog"}, {"Tier": "animal"}),
        ({"parent": "vehicle,furniture"}, {"car", "chair", "table"}, None),
        ({"parent": "pet", "exclude": "Hund", "lang": "de"}, {"cat"}, {"Hund": "dog"}),
    ],
)
def test_questions_name_labels_in_other_words(
    client: TestClient, asked: dict[str, str], found: set[str], resolved: dict[str, str] | None
) -> None:
    response = send_image(client, params=ALL | asked)
    assert names(response) == found
    assert response.json().get("resolved") == resolved


def test_candidate_in_another_language_is_scored_by_the_labels_text(client: TestClient) -> None:
    def score(word: str, **asked: str) -> dict[str, Any]:
        params = ALL | {"candidate_labels": word} | asked
        (label,) = send_image(client, params=params).json()["labels"]
        return dict(label)

    cat = score("cat")
    assert score("Katze", lang="de") == cat | {"label": "Katze", "translation": "Katze"}
    assert score("puss") == cat | {"label": "puss"}
    assert score("chat")["score"] != cat["score"], "without a language, it is an English text"
    assert score("yeti", lang="fr")["label"] == "yeti"
    both = ALL | {"candidate_labels": "Katze", "lang": "de", "label_set": "trained"}
    found = names(send_image(client, params=both))
    assert found & {"Katze", "cat"} == {"Katze"}, "the candidate answers for the label it means"
    sent = client.post(
        "/predict", params=ALL, data={"candidate_labels": "CAT"}, files={"image": PHOTO}
    )
    assert (names(sent), sent.json().get("resolved")) == ({"CAT"}, None)


@pytest.mark.parametrize(
    ("asked", "code", "detail"),
    [
        ({"lang": "it"}, "unknown_language", "'it'. Known languages: 'de', 'fr'."),
        ({"include": "Katze"}, "unknown_label", "'Katze'; send lang=de, in which it means 'cat'."),
        ({"include": "Kaze", "lang": "de"}, "unknown_label", "'Kaze'; did you mean 'Katze'?"),
        ({"include": "hond"}, "unknown_label", "'hond'; did you mean 'hound'?"),
        ({"include": "Bank", "lang": "de"}, "ambiguous_word", "'Bank' means 'table', 'lamp'"),
        ({"candidate_labels": "Bank", "lang": "de"}, "ambiguous_word", "'Bank' means"),
        (
            {"parent": "Tiere", "lang": "de"},
            "unknown_parent",
            "'Tiere'; did you mean 'Tier'? Known",
        ),
        ({"include": "puss", "exclude": "cat"}, "conflicting_labels", "'cat'"),
    ],
)
def test_word_without_one_meaning_is_422_with_the_next_step(
    client: TestClient, asked: dict[str, str], code: str, detail: str
) -> None:
    problem = assert_problem(send_image(client, params=asked), 422, code)
    assert problem["detail"].startswith(detail)
    assert names(send_image(client, params={"include": "bench", "top_k": 1})) == {"table"}


def test_set_keeps_its_words_when_it_is_read_changed_and_replaced(client: TestClient) -> None:
    okapi = {
        "name": "okapi",
        "aliases": ["forest giraffe"],
        "parents": ["animal"],
        "translations": {"de": "Waldgiraffe", "pt-BR": "ocapi"},
    }
    made = client.post("/labels", json={"name": "zoo", "labels": [okapi, "yak"]})
    assert made.status_code == 201
    read = client.get("/labels/zoo").json()
    LabelSetAnswer.model_validate(read, strict=True)
    assert read["languages"] == ["de", "pt-BR"]
    assert read["labels"][0].items() >= okapi.items()
    assert "aliases" not in read["labels"][1]
    assert client.post("/labels", json={"name": "zoo", "labels": [okapi, "yak"]}).status_code == 200
    okapi["translations"] = {"de": "Okapi"}
    for labels in ([okapi, *read["labels"][1:]], ["okapi", "yak"]):
        changed = client.put("/labels/zoo", json={**read, "labels": labels}).json()
        assert changed["version"] > read["version"]
        assert changed.get("languages") == (["de"] if labels[0] is okapi else None)
        read = changed
        thresholds = {"labels": [{"name": "yak", "threshold": 0.0}]}
        read = client.patch("/labels/zoo", json=thresholds).json()
        asked = {"label_set": "zoo", "lang": "de", "parents": True, "top_k": 9}
        if labels[0] is okapi:
            answer = send_image(client, params=asked).json()["labels"]
            (found,) = [label for label in answer if label["label"] == "okapi"]
            assert found["translation"] == "Okapi"
            assert found["parent_translations"] == ["Tier"], "of the bundle's words"
    problem = assert_problem(send_image(client, params=asked), 422, "unknown_language")
    assert problem["detail"] == "'de'. They have no translations."
    client.delete("/labels/zoo")


def test_default_language_is_that_of_the_settings(worded_bundle: Bundle) -> None:
    with serve_app(worded_bundle.path, lang="fr") as client:
        label = send_image(client, params={"include": "chat"}).json()["labels"]
        (cat,) = send_image(client, params={"include": "chat", "top_k": 1}).json()["labels"]
        assert cat["translation"] == "chat"
        (cat,) = send_image(client, params={"include": "cat", "top_k": 1, "lang": "en"}).json()[
            "labels"
        ]
        assert "translation" not in cat
        client.post("/labels", json={"name": "zoo", "labels": ["yak"]})
        assert names(send_image(client, params={"label_set": "zoo", "top_k": 1})) == {"yak"}
        assert len(label) <= 1
