"""Both clients, on a real server; every test runs for the blocking and for the async one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_decoder_client import Answer, NewLabel, ServiceProblem
from tests.support.photos import make_photo
from tests.support.tiny_bundle import EMBEDDING_WIDTH

PHOTO = make_photo()


@pytest.fixture
def client(kind: Any, server_url: str) -> Iterator[Any]:
    with kind(server_url) as client:
        yield client
        assert client.predict(PHOTO, top_k=1).labels, "a good request still works"


def test_photo_is_labelled_from_bytes_and_from_a_file(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    from_bytes, from_file = client.predict(PHOTO, top_k=3), client.predict(path, top_k=3)
    assert isinstance(from_bytes, Answer)
    assert from_bytes.labels == from_file.labels
    assert len(from_bytes.labels) == 3
    assert (from_bytes.image.width, from_bytes.image.height) == (48, 32)


def test_every_parameter_reaches_the_service(client: Any) -> None:
    def names(**question: Any) -> list[str]:
        return [label.label for label in client.predict(PHOTO, **question).labels]

    assert set(names(candidate_labels=["yak", "newt"], top_k=9)) == {"yak", "newt"}
    assert set(names(label_set=["everyday"], top_k=9)) == {"chair", "table", "lamp"}
    assert set(names(include=["cat", "dog"], threshold=0.0)) == {"cat", "dog"}
    assert "cat" not in names(exclude=["cat"], threshold=0)
    assert names(min_version=0, threshold="calibrated") == names()


def test_numbers_and_names_of_numpy_and_sets_of_names_are_taken(client: Any) -> None:
    plain = client.predict(PHOTO, include=["cat", "dog"], threshold=0.25, top_k=1)
    names = (np.array(["cat", "dog"]), {"cat", "dog"}, {"cat": 1, "dog": 2}.keys())
    for include in names:
        numbers = {"threshold": np.float32(0.25), "top_k": np.int64(1)}
        assert client.predict(PHOTO, include=include, **numbers).labels == plain.labels


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"top_k": None}, "top_k cannot be a NoneType"),
        ({"include": (name for name in ["cat"])}, "include cannot be a generator"),
        ({"exclude": b"cat"}, "exclude cannot be a bytes"),
    ],
)
def test_parameter_that_cannot_be_sent_is_refused_in_words(
    client: Any, question: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        client.predict(PHOTO, **question)


def test_one_name_is_no_list_of_labels(client: Any) -> None:
    for write in (client.register_label_set, client.replace_label_set):
        with pytest.raises(TypeError, match="not one name"):
            write("pets", "cat")
    assert "pets" not in {found.name for found in client.list_label_sets()}


def test_labels_may_come_one_by_one(client: Any) -> None:
    for write in (client.register_label_set, client.replace_label_set):
        made = write("crowd", (name for name in ("newt", "yak")))
        assert [label.name for label in made.labels] == ["newt", "yak"]
    client.delete_label_set("crowd")


def test_label_may_be_a_mapping_of_its_keys(client: Any) -> None:
    made = client.register_label_set("crowd", [{"name": "newt", "threshold": 0.25}, "yak"])
    assert [(label.name, label.calibrated) for label in made.labels] == [
        *(("newt", True), ("yak", False))
    ]
    assert client.replace_label_set("crowd", [{"name": "newt", "prompt": None}]).num_labels == 1
    with pytest.raises(ValueError, match="nam\n"):  # as `NewLabel` itself
        client.replace_label_set("crowd", [{"nam": "newt"}])
    vector = np.ones(EMBEDDING_WIDTH, np.float32)
    client.replace_label_set("crowd", [{"name": "newt", "embedding": vector}])
    client.delete_label_set("crowd")


@pytest.mark.parametrize("label", [None, 3, ("newt", 0.25), b"newt"])
def test_label_of_another_type_is_refused_in_one_line(client: Any, label: Any) -> None:
    for write in (client.register_label_set, client.replace_label_set):
        with pytest.raises(TypeError, match=r"^a label is a name, an object or a mapping, not a "):
            write("crowd", ["yak", label])
        with pytest.raises(TypeError, match="not one name or mapping"):
            write("crowd", {"yak": label})
    assert "crowd" not in {found.name for found in client.list_label_sets()}


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_name_that_an_address_would_swallow_is_refused(client: Any, name: str) -> None:
    for ask in (
        lambda: client.read_label_set(name),
        lambda: client.replace_label_set(name, ["yak"]),
        lambda: client.delete_label_set(name),
    ):
        with pytest.raises(ValueError, match=f"'{name}' is no name of a label set"):
            ask()


@pytest.mark.parametrize("name", ["a/b", "%2F", "a?b", "a#b", "a b", "\n", "ü", "..%2F"])
def test_name_that_no_set_has_reaches_the_service_as_it_is(client: Any, name: str) -> None:
    with pytest.raises(ServiceProblem) as caught:
        client.delete_label_set(name)
    # A slash is one for the service too, however it is written.
    assert caught.value.status == (404 if "/" in name else 422)
    with pytest.raises(ServiceProblem, match="The name of a label set should be"):
        client.register_label_set(name, ["yak"])


@pytest.mark.parametrize("photos", ["photos", b"photo", Path("photos")])
def test_one_photo_is_no_list_of_photos(client: Any, photos: Any) -> None:
    with pytest.raises(TypeError, match="photos are a list of photos, not one"):
        list(client.predict_many(photos))


def test_many_photos_come_back_in_order_and_a_bad_one_costs_only_itself(client: Any) -> None:
    photos = [make_photo(seed) for seed in range(20)]
    photos[7] = b"junk"
    answers = list(client.predict_many(photos, at_once=4, top_k=2))
    assert isinstance(answers[7], ServiceProblem)
    assert answers[7].code == "invalid_image"
    assert len(answers) == 20
    for photo, answer in zip(photos, answers, strict=True):
        if photo != b"junk":
            alone = client.predict(photo, top_k=2)
            assert [la.label for la in answer.labels] == [la.label for la in alone.labels]


def test_file_that_is_not_there_is_an_error_of_its_own(client: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.predict(tmp_path / "none.png")
    (missing,) = client.predict_many([tmp_path / "none.png"])
    assert isinstance(missing, FileNotFoundError)


def test_problem_says_what_the_service_says(client: Any) -> None:
    with pytest.raises(ServiceProblem, match="A label is unknown: 'unicorn'") as caught:
        client.predict(PHOTO, include=["unicorn"])
    problem = caught.value
    assert (problem.status, problem.code) == (422, "unknown_label")
    assert problem.request_id
    with pytest.raises(ServiceProblem, match="top_k: Input should be greater") as caught:
        client.predict(PHOTO, top_k=0)
    assert caught.value.errors[0]["name"] == "top_k"


def test_label_set_is_registered_replaced_and_deleted_by_version(client: Any) -> None:
    made = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert [(la.name, la.calibrated) for la in made.labels] == [("yak", False), ("newt", True)]
    again = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert again == made == client.read_label_set("my-zoo")
    assert "my-zoo" in {found.name for found in client.list_label_sets()}
    with pytest.raises(ServiceProblem) as caught:
        client.replace_label_set("my-zoo", ["crow"], if_version="999")
    assert caught.value.status == 412
    replaced = client.replace_label_set("my-zoo", ["crow"], if_version=made.version)
    assert replaced.num_labels == 1
    with pytest.raises(ServiceProblem) as caught:
        client.delete_label_set("my-zoo", if_version=made.version)
    assert caught.value.status == 412
    client.delete_label_set("my-zoo", if_version=replaced.version)
    with pytest.raises(ServiceProblem) as caught:
        client.read_label_set("my-zoo")
    assert caught.value.code == "label_set_not_found"


def test_labels_that_were_read_may_be_written_as_they_are(client: Any) -> None:
    labels = ["yak", NewLabel(name="newt", threshold=0.25, prompt="a newt")]
    made = client.register_label_set("my-zoo", labels)
    told = client.read_label_set("my-zoo").labels
    assert client.replace_label_set("my-zoo", told) == made
    assert client.register_label_set("my-zoo", [la.model_dump() for la in told]) == made
    vector = NewLabel(name="quux", embedding=[0.5] * EMBEDDING_WIDTH)
    told = client.replace_label_set("my-zoo", [*told, vector]).labels
    with pytest.raises(ServiceProblem, match="embedding of its own"):
        client.replace_label_set("my-zoo", told)
    assert client.replace_label_set("my-zoo", [*told[:2], vector]).labels == told
    client.delete_label_set("my-zoo")


def test_card_is_read(client: Any) -> None:
    info = client.info()
    assert info.model.name == "tiny-open"
    assert info.runtime["device"] == "cpu"


def test_photo_of_any_file_name_is_labelled(client: Any, tmp_path: Path) -> None:
    paths = [tmp_path / os.fsdecode(name) for name in (b"\xff.png", b"a\n.png", b'".png')]
    for path in paths:
        path.write_bytes(PHOTO)
    answers = list(client.predict_many(paths, top_k=1))
    assert [type(answer) for answer in answers] == [Answer] * 3


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_path_that_cannot_be_one_costs_only_itself(client: Any, name: str) -> None:
    with pytest.raises(OSError, match="Errno 22"):
        client.predict(name)
    bad, good = client.predict_many([name, PHOTO], top_k=1)
    assert (type(bad), type(good)) == (OSError, Answer)


def test_lists_longer_than_a_form_may_be_are_sent_too(client: Any) -> None:
    question = {"top_k": 9, "threshold": 0.0, "explain": False, "min_version": 0}
    labels = client.predict(PHOTO, include=["cat", "dog"] * 1500, **question).labels
    assert {label.label for label in labels} == {"cat", "dog"}
    # One name in place of a list is taken however the question is sent.
    for names in ("chair", ["chair"] * 3000):
        labels = client.predict(PHOTO, label_set="everyday", include=names, threshold=0).labels
        assert [label.label for label in labels] == ["chair"]
    with pytest.raises(ServiceProblem) as caught:
        client.predict(PHOTO, exclude=["unicorn"] * 3000)
    assert caught.value.code == "unknown_label"


@pytest.mark.parametrize("at_once", [0, -1])
def test_many_photos_none_at_once_is_refused(client: Any, at_once: int) -> None:
    with pytest.raises(ValueError, match="at_once must be at least 1"):
        list(client.predict_many([PHOTO], at_once=at_once))
