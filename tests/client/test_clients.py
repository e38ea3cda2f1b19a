"""Both clients against a real server."""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_decoder_client import (
    Answer,
    AsyncClient,
    Calibration,
    Client,
    NewLabel,
    ServiceProblem,
    calls,
)
from tests.support.photos import make_photo
from tests.support.tiny_bundle import EMBEDDING_WIDTH

PHOTO = make_photo()


def assert_problem(
    status: int, code: str, call: Callable[..., Any], *arguments: Any, **options: Any
) -> None:
    with pytest.raises(ServiceProblem) as caught:
        call(*arguments, **options)
    assert (caught.value.status, caught.value.code) == (status, code)


def test_predict_sends_every_parameter(client: Any) -> None:
    def names(**question: Any) -> list[str]:
        return [label.label for label in client.predict(PHOTO, **question).labels]

    assert set(names(candidate_labels=["yak", "newt"], top_k=9)) == {"yak", "newt"}
    assert set(names(label_set=["everyday"], top_k=9)) == {"chair", "table", "lamp"}
    assert set(names(include=["cat", "dog"], threshold=0.0)) == {"cat", "dog"}
    assert "cat" not in names(exclude=["cat"], threshold=0)
    assert names(min_version=0, threshold="calibrated") == names()
    filled = client.predict(PHOTO, min_labels=9).labels
    assert [label.label for label in filled if label.found] == names()
    assert len(filled) > len(names())
    assert_problem(422, "not_measured", client.predict, PHOTO, threshold="balanced")


def test_predict_takes_numpy_values_and_sets_of_names(client: Any) -> None:
    plain = client.predict(PHOTO, include=["cat", "dog"], threshold=0.25, top_k=1)
    names = (np.array(["cat", "dog"]), {"cat", "dog"}, {"cat": 1, "dog": 2}.keys())
    for include in names:
        numbers = {"threshold": np.float32(0.25), "top_k": np.int64(1)}
        assert client.predict(PHOTO, include=include, **numbers).labels == plain.labels


def test_name_with_a_comma_is_one_name_in_a_list_and_several_as_a_text(client: Any) -> None:
    def names(labels: Any) -> list[str]:
        found = client.predict(PHOTO, candidate_labels=labels, top_k=9).labels
        return sorted(label.label for label in found)

    assert names(["a, b"]) == ["a, b"]
    assert names(["a, b", "c"]) == ["a, b", "c"]
    assert names("a, b") == ["a", "b"]
    client.register_label_set("commas", ["tench, Tinca tinca", "yak"])
    alone = client.predict(PHOTO, label_set=["commas"], include=["tench, Tinca tinca"], top_k=9)
    assert [label.label for label in alone.labels] == ["tench, Tinca tinca"]
    client.delete_label_set("commas")


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"top_k": None}, "top_k must be .*; it is a NoneType"),
        ({"include": (name for name in ["cat"])}, "include must be .* a generator"),
        ({"exclude": b"cat"}, "exclude must be .* a bytes"),
    ],
)
def test_predict_names_the_parameter_that_has_a_wrong_type(question: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        calls.predict(PHOTO, **question)


def test_labels_may_be_an_iterator_and_a_label_a_mapping(client: Any) -> None:
    labels = [{"name": "newt", "threshold": 0.25}, "yak"]
    made = client.register_label_set("crowd", iter(labels))
    assert [(label.name, label.calibrated) for label in made.labels] == [
        *(("newt", True), ("yak", False))
    ]
    assert client.replace_label_set("crowd", [{"name": "newt", "prompt": None}]).num_labels == 1
    vector = np.ones(EMBEDDING_WIDTH, np.float32)
    client.replace_label_set("crowd", [{"name": "newt", "embedding": vector}])
    client.delete_label_set("crowd")


@pytest.mark.parametrize("label", [None, 3, ("newt", 0.25), b"newt"])
def test_label_of_another_type_is_refused(label: Any) -> None:
    with pytest.raises(TypeError, match="a label must be a name, an object or a mapping, not a "):
        calls.register_label_set("crowd", ["yak", label])
    for labels in ("yak", {"yak": label}):
        with pytest.raises(TypeError, match="not one name or mapping"):
            calls.replace_label_set("crowd", labels)
    with pytest.raises(TypeError, match="'nam'"):  # as `NewLabel` itself
        calls.replace_label_set("crowd", [{"nam": "newt"}])


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_set_name_is_refused_if_urls_would_drop_it(name: str) -> None:
    for call in (
        calls.read_label_set,
        calls.delete_label_set,
        partial(calls.replace_label_set, labels=["yak"]),
        partial(calls.change_thresholds, thresholds={"yak": 0.5}),
        partial(calls.calibrate_label, label="yak", positive=[PHOTO]),
    ):
        with pytest.raises(ValueError, match=f"invalid label set name '{re.escape(name)}'"):
            call(name)


@pytest.mark.parametrize("name", ["a/b", "%2F", "a?b", "a#b", "a b", "\n", "ü", "..%2F"])
def test_invalid_set_name_is_sent_unchanged(client: Any, name: str) -> None:
    with pytest.raises(ServiceProblem) as caught:
        client.delete_label_set(name)
    # %2F is a slash for the service.
    assert caught.value.status == (404 if "/" in name else 422)
    with pytest.raises(ServiceProblem, match="The name of a label set should be"):
        client.register_label_set(name, ["yak"])


@pytest.mark.parametrize("photos", ["photos", b"photo", Path("photos")])
def test_one_photo_is_refused_in_place_of_several(client: Any, photos: Any) -> None:
    with pytest.raises(TypeError, match="photos must be a list of photos, not one"):
        list(client.predict_many(photos))
    with pytest.raises(TypeError, match="photos must be a list of photos, not one"):
        client.calibrate_label("garden", "newt", photos)


def test_predict_many_yields_answers_in_order_and_an_error_for_a_bad_photo(client: Any) -> None:
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


def test_label_set_is_registered_replaced_and_deleted_by_version(client: Any) -> None:
    made = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert [(la.name, la.calibrated) for la in made.labels] == [("yak", False), ("newt", True)]
    again = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", threshold=0.25)])
    assert again == made == client.read_label_set("my-zoo")
    assert "my-zoo" in {found.name for found in client.list_label_sets()}
    changed = (412, "label_set_changed")
    assert_problem(*changed, client.replace_label_set, "my-zoo", ["crow"], if_version="999")
    pair = Calibration(scale=0.5, shift=-1.0)
    replaced = client.replace_label_set(
        "my-zoo", ["crow"], calibration=pair, if_version=made.version
    )
    assert (replaced.num_labels, replaced.calibration) == (1, pair)
    assert client.read_label_set("my-zoo").calibration == pair
    assert_problem(*changed, client.delete_label_set, "my-zoo", if_version=made.version)
    client.delete_label_set("my-zoo", if_version=replaced.version)
    assert_problem(404, "label_set_not_found", client.read_label_set, "my-zoo")


def test_labels_that_were_read_can_be_written(client: Any) -> None:
    vector = NewLabel(name="quux", embedding=[0.5] * EMBEDDING_WIDTH)
    made = client.register_label_set("my-zoo", ["yak", NewLabel(name="newt", prompt="a newt")])
    assert client.replace_label_set("my-zoo", made.labels) == made
    assert client.register_label_set("my-zoo", [asdict(label) for label in made.labels]) == made
    stored = client.replace_label_set("my-zoo", [*made.labels, vector]).labels
    with pytest.raises(ServiceProblem, match="embedding of its own"):
        client.replace_label_set("my-zoo", stored)
    client.delete_label_set("my-zoo")


def test_words_of_labels_are_written_read_and_asked_for(client: Any) -> None:
    words = {"aliases": ["sofa"], "parents": ["furniture"], "translations": {"de": "Sofa"}}
    made = client.register_label_set("home", [NewLabel(name="couch", **words), "yak"])
    assert made.languages == ["de"]
    assert client.replace_label_set("home", made.labels, if_version=made.version) == made
    assert client.register_label_set("home", [asdict(label) for label in made.labels]) == made
    home = partial(client.predict, PHOTO, label_set="home", top_k=9, parent="furniture")
    answer = home(include=["SOFA"], lang="de-AT", parents=True)
    (label,) = answer.labels
    assert (label.label, label.translation, label.parents) == ("couch", "Sofa", ["furniture"])
    assert (label.parent_translations, answer.resolved) == (["furniture"], {"SOFA": "couch"})
    assert_problem(422, "unknown_language", home, lang="fr")
    client.delete_label_set("home")
    written = calls.register_label_set("old", [NewLabel(name="yak")]).options["json"]
    assert written["labels"] == [{"name": "yak"}], "older services refuse unknown fields"


def test_threshold_is_found_from_photos_and_kept(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    made = client.register_label_set("garden", ["quux", "newt"])

    found = client.calibrate_label("garden", "quux", [PHOTO, path], [make_photo(1), b"x"])

    assert found.positive[0] == found.positive[1]
    assert found.current.threshold == made.labels[0].threshold
    assert [each.score is None for each in found.negative] == [False, True]
    assert found.negative[1].error["code"] == "invalid_image"
    version, best = found.label_set.version, found.best.threshold
    change = client.change_thresholds
    assert change("garden", {"quux": best}, if_version=version).labels[0].threshold == best
    assert_problem(412, "label_set_changed", change, "garden", {"newt": 0.5}, if_version=version)
    assert change("garden", {"quux": None}).labels[0].calibrated is False
    assert client.calibrate_label("garden", "newt", [path], precision_target=0.9).best is None
    client.delete_label_set("garden")


def test_info_returns_the_model_card(client: Any) -> None:
    info = client.info()
    assert (info.model.name, info.runtime["device"]) == ("tiny-open", "cpu")


def test_photo_may_have_any_file_name(client: Any, tmp_path: Path) -> None:
    paths = [tmp_path / os.fsdecode(name) for name in (b"\xff.png", b"a\n.png", b'".png')]
    for path in paths:
        path.write_bytes(PHOTO)
    answers = list(client.predict_many([*paths, "a\0b", "\ud800"], top_k=1))
    assert [type(answer) for answer in answers] == [Answer] * 3 + [OSError] * 2
    assert "Errno 22" in str(answers[3])


def test_predict_takes_lists_longer_than_a_form_allows(client: Any) -> None:
    question = {"top_k": 9, "threshold": 0.0, "explain": False, "min_version": 0}
    labels = client.predict(PHOTO, include=["cat", "dog"] * 1500, **question).labels
    assert {label.label for label in labels} == {"cat", "dog"}
    # A single name works in forms and in JSON.
    for names in ("chair", ["chair"] * 3000):
        labels = client.predict(PHOTO, label_set="everyday", include=names, threshold=0).labels
        assert [label.label for label in labels] == ["chair"]
    with pytest.raises(ServiceProblem, match="A label is unknown: 'unicorn'"):
        client.predict(PHOTO, exclude=["unicorn"] * 3000)


@pytest.mark.parametrize("at_once", [0, -1])
def test_predict_many_refuses_at_once_below_one(client: Any, at_once: int) -> None:
    with pytest.raises(ValueError, match="at_once must be at least 1"):
        list(client.predict_many([PHOTO], at_once=at_once))


def test_methods_of_both_clients_have_the_signatures_and_docstrings_of_their_calls() -> None:
    for name in ("predict", "replace_label_set", "calibrate_label"):
        call, blocking, awaited = (getattr(each, name) for each in (calls, Client, AsyncClient))
        assert call.__doc__ == blocking.__doc__ == awaited.__doc__
        bound = inspect.signature(getattr(Client(), name))
        assert [*bound.parameters] == [*inspect.signature(call).parameters]
        assert inspect.signature(blocking) == inspect.signature(awaited)
        assert inspect.iscoroutinefunction(awaited)
