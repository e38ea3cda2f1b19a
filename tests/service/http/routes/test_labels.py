"""Tests of `/labels`, and of `/predict` over registered label sets."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.http.requests import json as json_bodies
from service.labels.label_set import LabelSet
from service.labels.store.store import LabelStore
from tests.support.serving import (
    PHOTO,
    assert_problem,
    assert_still_serving,
    labels_of,
    send_image,
    send_images,
    serve_app,
)
from tests.support.threads import Gate, wait_until
from tests.support.tiny_bundle import EMBEDDING_WIDTH, write_open_bundle

BUNDLE = "open_bundle"
SETTINGS = {"max_labels_per_set": 50, "max_labels": 80}
PETS = {"name": "pets", "labels": ["red panda", {"name": "axolotl", "threshold": 0.2}]}
# Runs over other numbers of labels may sum in another order.
TOLERANCE = 1e-5
SECONDS = 30.0


@pytest.fixture
def client(shared_client: TestClient) -> Iterator[TestClient]:
    """The app with an empty store; it must still work after each test."""
    yield shared_client
    for entry in shared_client.get("/labels").json()["label_sets"]:
        if not entry["read_only"]:
            assert shared_client.delete(f"/labels/{entry['name']}").status_code == 204
    assert_still_serving(shared_client)


def register(client: TestClient, body: dict[str, Any]) -> Any:
    response = client.post("/labels", json=body)
    assert response.status_code == 201, response.text
    return response


def scores_of(client: TestClient, **params: Any) -> dict[str, float]:
    return dict(labels_of(send_image(client, params={"top_k": 1000, **params})))


def test_registered_set_is_returned_and_listed(client: TestClient) -> None:
    response = register(client, PETS)

    body = response.json()
    assert response.headers["location"] == "/labels/pets"
    assert response.headers["etag"] == f'"{body["version"]}"'
    assert (body["name"], body["origin"], body["read_only"]) == ("pets", "store", False)
    text = {"prompt": None, "own_embedding": False}
    assert body["labels"] == [
        {"name": "red panda", "threshold": 0.3, "calibrated": False, **text},
        {"name": "axolotl", "threshold": 0.2, "calibrated": True, **text},
    ]
    assert client.get("/labels/pets").json() == body
    listed = client.get("/labels").json()["label_sets"]
    counts = {entry["name"]: entry["num_labels"] for entry in listed}
    assert counts == {"trained": 5, "everyday": 3, "pets": 2}
    answer = send_image(client, params={"label_set": "pets"}).json()
    assert answer["label_set"] == {"name": "pets", "version": body["version"]}
    assert answer["label_sets"] == [answer["label_set"]]


def test_set_is_described_once_for_all_that_ask_and_never_for_304(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Any = client.app
    served = app.state.served
    vars(served.pipeline.catalogue.find("trained")).pop("_content", None)
    with monkeypatch.context() as patch, ThreadPoolExecutor() as threads:
        gate = Gate(patch, LabelSet, "_describe_labels")
        known = client.get("/labels/trained", headers={"If-None-Match": "*"})
        assert (known.status_code, gate.arrivals) == (304, 0)
        asked = [threads.submit(client.get, "/labels/trained") for _ in range(3)]
        gate.wait()
        wait_until(lambda: served.side_threads.waiting == 3)
        gate.open()
        (content,) = {response.result(SECONDS).content for response in asked}
        head = client.head("/labels/trained")
        assert (head.headers["content-length"], gate.arrivals) == (str(len(content)), 1)
    assert len(client.get("/labels/trained").json()["labels"]) == 5


def test_answer_names_the_labels_of_a_registered_set_that_an_earlier_set_answers(
    client: TestClient,
) -> None:
    chairs = [f"chair {number}" for number in range(12)]
    for name in ("mine", "same"):
        register(client, {"name": name, "labels": chairs})
    asked = {"label_set": ["trained", "mine", "same"]}
    for answer in (send_image(client, params=asked), send_images(client, [PHOTO], params=asked)):
        *others, same = answer.json()["label_sets"]
        assert {key for other in others for key in other} == {"name", "version"}
        assert (same["num_hidden"], same["hidden"]) == (12, chairs[:10])


def test_candidate_labels_are_for_one_request_and_score_as_registered_ones(
    client: TestClient,
) -> None:
    register(client, PETS)
    names = ["axolotl", "red panda"]
    registered = scores_of(client, label_set="pets")
    body = send_image(client, params={"candidate_labels": names, "top_k": 9}).json()
    assert body["label_set"]["name"] == "candidate_labels"
    scores = {label["label"]: label["score"] for label in body["labels"]}
    assert scores == pytest.approx(registered, abs=TOLERANCE)
    assert len(client.get("/labels").json()["label_sets"]) == 3
    both = scores_of(client, candidate_labels=names, label_set="trained")
    trained = scores_of(client, label_set="trained")
    assert both == pytest.approx(registered | trained, abs=TOLERANCE)


def test_put_makes_and_replaces_what_post_does_not(client: TestClient) -> None:
    made = client.put("/labels/pets", json={"labels": ["newt"]})
    assert made.status_code == 201
    assert_problem(client.post("/labels", json=PETS), 409, "label_set_exists")
    replaced = client.put("/labels/pets", json=PETS)
    assert replaced.status_code == 200
    assert int(replaced.json()["version"]) > int(made.json()["version"])
    answer = client.get("/labels/pets").json()
    for written in (client.put("/labels/pets", json=answer), client.post("/labels", json=answer)):
        assert (written.status_code, written.json()) == (200, replaced.json())
    answer["labels"].append("yak")
    changed = client.put("/labels/pets", json=answer).json()["labels"]
    assert [label["calibrated"] for label in changed] == [False, True, False]


def test_conditions_guard_against_lost_updates(client: TestClient) -> None:
    tag = register(client, PETS).headers["etag"]
    body = {"labels": ["newt"]}

    def put(**headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.put("/labels/pets", json=body, headers=named)

    for stale in ('"0"', f"W/{tag}", f'"0", W/{tag}', "junk", ""):
        assert_problem(put(if_match=stale), 412, "label_set_changed")
        removed = client.delete("/labels/pets", headers={"If-Match": stale})
        assert_problem(removed, 412, "label_set_changed")
    assert_problem(put(if_none_match="*"), 412, "label_set_changed")
    for known in (tag, f"W/{tag}", f'"0", {tag}', "*"):
        assert client.get("/labels/pets", headers={"If-None-Match": known}).status_code == 304
    for unknown in ('"0"', tag.strip('"'), ""):
        assert client.get("/labels/pets", headers={"If-None-Match": unknown}).status_code == 200
    new = put(if_match=f'W/"0", "x", {tag}')
    assert new.status_code == 200
    assert_problem(put(if_match=tag), 412, "label_set_changed")
    gone = client.delete("/labels/pets", headers={"If-Match": new.headers["etag"]})
    assert gone.status_code == 204
    assert_problem(put(if_match="*"), 412, "label_set_changed")
    assert put(if_none_match="*").status_code == 201
    current = client.get("/labels/pets").headers["etag"]
    assert_problem(put(if_none_match=f'"0", {current}'), 412, "label_set_changed")
    assert put(if_none_match='"0"').status_code == 200


@pytest.mark.parametrize("others", [("tag", '"0"'), ('"0"', "tag")])
def test_lines_of_a_condition_are_one_list(client: TestClient, others: tuple[str, str]) -> None:
    tag = register(client, PETS).headers["etag"]
    lines = [tag if line == "tag" else line for line in others]
    known = client.get("/labels/pets", headers=[("If-None-Match", line) for line in lines])
    assert known.status_code == 304
    condition = [("If-Match", line) for line in lines]
    written = client.put("/labels/pets", json={"labels": ["newt"]}, headers=condition)
    assert written.status_code == 200
    stale = client.put("/labels/pets", json=PETS, headers=condition)
    assert_problem(stale, 412, "label_set_changed")


def test_conditions_apply_to_the_version_of_another_process(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    shared = {"label_store": str(tmp_path / "shared.db"), "label_poll_seconds": 60.0}
    with (
        serve_app(open_bundle.path, **shared) as here,
        serve_app(open_bundle.path, **shared) as there,
    ):
        first = register(here, PETS).headers["etag"]
        for number, condition in enumerate(("*", "newest", f"{first}, newest")):
            written = there.put("/labels/pets", json={"labels": [f"newt {number}"]})
            match = {"If-Match": condition.replace("newest", written.headers["etag"])}
            done = here.put("/labels/pets", json={"labels": [f"toad {number}"]}, headers=match)
            assert done.status_code == 200
        there.put("/labels/pets", json={"labels": ["newt"]})
        assert here.delete("/labels/pets", headers={"If-Match": "*"}).status_code == 204
        gone = there.put("/labels/pets", json={"labels": ["x"]}, headers={"If-Match": "*"})
        assert_problem(gone, 412, "label_set_changed")
        made = there.put("/labels/pets", json=PETS, headers={"If-None-Match": "*"})
        assert made.status_code == 201


def test_sets_that_came_with_the_model_cannot_be_changed(client: TestClient) -> None:
    body = {"name": "everyday", "labels": ["newt"]}
    assert_problem(client.post("/labels", json=body), 409, "label_set_read_only")
    for headers in ({}, {"If-Match": client.get("/labels/everyday").headers["etag"]}):
        replaced = client.put("/labels/everyday", json=body, headers=headers)
        assert_problem(replaced, 409, "label_set_read_only")
        removed = client.delete("/labels/everyday", headers=headers)
        assert_problem(removed, 409, "label_set_read_only")


def test_json_may_have_as_many_embeddings_as_a_set_and_little_else(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = [0.5] * EMBEDDING_WIDTH
    vector_and_threshold = {"embedding": vector, "threshold": 0.5}
    labels: list[Any] = [{"name": f"label {i}", **vector_and_threshold} for i in range(50)]
    with monkeypatch.context() as patch:
        patch.setattr(json_bodies, "MAX_PARTS", 5)  # the set, its list, its name and two keys
        register(client, {"name": "most", "labels": labels})
        more = client.post("/labels", json={"name": "more", "labels": [*labels, []]})
        assert "lists" in assert_problem(more, 400, "malformed_body")["detail"]


def zeros(**values: Any) -> dict[str, Any]:
    return {"name": "x", "embedding": [0.0] * EMBEDDING_WIDTH, **values}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"labels": [""] * 51}, 422, "invalid_labels"),  # counted before each is checked
        ({"labels": [zeros(embedding=["NaN"] * EMBEDDING_WIDTH)]}, 422, "invalid_labels"),
        ({"labels": ["a"], "embedding_space": "0" * 64}, 409, "other_embeddings"),
        ({"labels": [f"a{i}" for i in range(31)]}, 409, "too_many_label_sets"),
    ],
)
def test_set_that_cannot_be_used_is_refused(
    client: TestClient, body: dict[str, Any], status: int, code: str
) -> None:
    register(client, {"name": "most", "labels": [f"b{i}" for i in range(50)]})
    assert_problem(client.post("/labels", json={"name": "x", **body}), status, code)
    assert len(client.get("/labels").json()["label_sets"]) == 3


def test_name_in_the_body_must_be_that_in_the_path(client: TestClient) -> None:
    other = client.put("/labels/pets", json={"name": "vets", "labels": ["a"]})
    assert_problem(other, 422, "invalid_parameters")


@pytest.mark.parametrize(
    ("labels", "name", "reason"),
    [
        (
            ["a", {"name": "b", "treshold": 1}],
            "labels.1.treshold",
            "This name is unknown; did you mean 'threshold'? Known names: name, aliases, ",
        ),
        (["a", ""], "labels.1.name", "Text should not be empty"),
        ([{"name": "a", "prompt": "a", "embedding": [1]}], "labels.0", "A label takes a prompt or"),
        ([{"name": "a", "embedding": "1"}], "labels.0.embedding", "Input should be a valid list"),
        ([], "labels", "List should have at least 1 item"),
        ("a", "labels", "Input should be a valid list"),
        ([zeros(threshold="recall")], "labels.0.threshold", "Input should be a valid number"),
    ],
)
def test_wrong_label_is_named_by_its_place_alone(
    client: TestClient, labels: object, name: str, reason: str
) -> None:
    response = client.post("/labels", json={"name": "x", "labels": labels})
    (error,) = assert_problem(response, 422, "invalid_parameters")["errors"]
    assert error["name"] == name
    assert error["reason"].startswith(reason)


@pytest.mark.parametrize("name", ["a b", "-a", "x" * 101])
def test_invalid_name_of_a_set_is_refused_with_the_rule(client: TestClient, name: str) -> None:
    body = {"labels": ["a"]}
    answers = {
        "path": client.put(f"/labels/{name}", json=body),
        "body": client.post("/labels", json={"name": name, **body}),
        "query": send_image(client, params={"label_set": name}),
    }
    for where, answer in answers.items():
        (error,) = assert_problem(answer, 422, "invalid_parameters")["errors"]
        assert error["where"] == where
        assert "1 to 100 letters, digits or ._- of ASCII" in error["reason"]
    for method in ("GET", "DELETE"):
        assert_problem(client.request(method, f"/labels/{name}"), 422, "invalid_parameters")


def test_model_without_text_encoder_takes_embeddings_only(tmp_path: Path) -> None:
    bundle = write_open_bundle(tmp_path, encodes_text=False)
    with serve_app(bundle.path) as client:
        assert_problem(client.post("/labels", json=PETS), 422, "embedding_needed")
        asked = send_image(client, params={"candidate_labels": "yak"})
        assert_problem(asked, 422, "embedding_needed")
        register(client, {"name": "x", "labels": [zeros(embedding=[1.0] * EMBEDDING_WIDTH)]})
        assert set(scores_of(client, label_set="x")) == {"x"}


def test_draining_waits_for_a_change(open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_app(open_bundle.path) as client, ThreadPoolExecutor() as threads:
        gate = Gate(monkeypatch, LabelStore, "check")
        changing = threads.submit(register, client, PETS)
        gate.wait()
        draining = client.portal.start_task_soon(client.app.state.served.drain)  # type: ignore[attr-defined]
        while client.get("/readyz").status_code == 200:
            pass
        assert_problem(client.delete("/labels/pets"), 503, "draining")
        assert not draining.done()
        gate.open()
        changing.result(SECONDS)
        draining.result(SECONDS)


def test_misspelt_label_set_is_named_with_the_nearest_and_the_known(client: TestClient) -> None:
    hint = "'everday'; did you mean 'everyday'? Known label sets: 'trained', 'everyday'."
    asked = send_image(client, params={"label_set": "everday"})
    assert assert_problem(asked, 422, "unknown_label_set")["detail"] == hint
    register(client, {"name": "everday", "labels": ["a"]})
    assert client.delete("/labels/everday").status_code == 204
    for response in (client.get("/labels/everday"), client.delete("/labels/everday")):
        assert assert_problem(response, 404, "label_set_not_found")["detail"] == hint
    put = client.put("/labels/everday", json={"labels": ["a"]}, headers={"If-Match": '"1"'})
    detail = assert_problem(put, 412, "label_set_changed")["detail"]
    assert detail == "'everday' does not exist: read it again before you change it."
