"""Label sets: columns in the order of the logits, thresholds with their fallback, read-only."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.bundle.card import (
    FALLBACK_THRESHOLD,
    Calibration,
    HeadCalibration,
    Label,
    OpenHead,
    TrainedHead,
)
from service.engine.heads import LabelVectors
from service.fields import Purpose
from service.http.responses.schemas import LabelSetAnswer
from service.labels.definition import Definition
from service.labels.label_set import LabelSet, Origin, make_open_set, make_trained_set
from service.question import Threshold
from tests.support.tiny_bundle import PLAIN_HEAD, SPACE, make_by_purpose, make_calibration

DEFINITION = Definition("pets", ("cat", "yak", "newt"), (None, "a yak", None), (0.0, None, 0.9))
PAIR = make_calibration(0.5, -2.0)


def _head(threshold: float | None) -> OpenHead:
    return OpenHead(kind="ml_decoder", embedding_space=SPACE, threshold=threshold)


def open_set(
    definition: Definition = DEFINITION, head: OpenHead | None = None, *trained_names: str
) -> LabelSet:
    vectors, head = LabelVectors(np.ones((3, 4), np.float32)), head or _head(0.3)
    return make_open_set(definition, vectors, head, trained_names, version="7", origin="store")


def test_description_is_the_answer_of_the_service_for_sets_of_all_kinds() -> None:
    labels = [Label(name="cat", category="animal"), Label(name="mug")]
    head = TrainedHead(kind="gap", num_labels=2, activation="sigmoid", calibration=PAIR)
    own = replace(DEFINITION, calibration=Calibration(scale=2.0, shift=0.5))
    other_model = replace(open_set(), unused_lessons=frozenset({"yak"}))
    ranked = replace(open_set(), ranked=True)
    sets = (make_trained_set(labels, head), open_set(own), other_model, ranked)
    answers = [LabelSetAnswer.model_validate_json(each.content) for each in sets]
    assert [each.content.decode() for each in sets] == [a.model_dump_json() for a in answers]
    cat, yak, _ = answers[2].labels
    assert (cat.examples, yak.examples.this_model) == (None, False)


@pytest.mark.parametrize(("fallback", "expected"), [(0.3, 0.3), (0.0, 0.0), (None, 0.5)])
def test_label_without_threshold_takes_the_fallback_and_is_not_calibrated(
    fallback: float | None, expected: float
) -> None:
    labels = open_set(head=_head(fallback))
    assert labels.thresholds.tolist() == [0.0, expected, 0.9]
    assert labels.calibrated.tolist() == [True, False, True]


def test_trained_labels_keep_their_thresholds() -> None:
    labels = make_trained_set([Label(name="a", threshold=0.0), Label(name="b")], PLAIN_HEAD)
    assert labels.thresholds.tolist() == [0.0, FALLBACK_THRESHOLD]
    assert labels.calibrated.tolist() == [True, False]
    assert (labels.source.name, labels.queries, labels.digest) == ("trained", None, None)
    assert labels.calibration is None
    assert labels.positions == {"a": 0, "b": 1}
    assert labels.read_only


@pytest.mark.parametrize(
    ("purpose", "trained", "opened"),
    [
        ("balanced", [0.7, 0.25], [0.0, 0.25, 0.9]),
        ("recall", [0.6, 0.125], [0.0, 0.125, 0.125]),
        ("precise", [0.95, 0.8], [0.8, 0.8, 0.9]),
    ],
)
def test_label_without_a_threshold_of_a_purpose_takes_the_heads(
    purpose: Purpose, trained: list[float], opened: list[float]
) -> None:
    by_purpose = {"by_purpose": make_by_purpose(0.25, 0.125, 0.8)}
    own = make_by_purpose(0.7, 0.6, 0.95)
    names = Label(name="a", by_purpose=own), Label(name="b", threshold=0.2)
    labels = make_trained_set(names, PLAIN_HEAD.model_copy(update=by_purpose))
    used = labels.use(purpose)
    assert (used.thresholds.tolist(), used.calibrated.tolist()) == (trained, [True, False])
    assert (labels.use(purpose), labels.thresholds.tolist()) == (used, [0.5, 0.2])
    pets = open_set(head=_head(0.3).model_copy(update=by_purpose)).use(purpose)
    assert pets.thresholds.tolist() == opened
    assert pets.calibrated.tolist() == [purpose != "precise", False, purpose != "recall"]
    assert open_set().use(purpose) is None


@pytest.mark.parametrize("origin", ["store", "folder", "request"])
def test_queries_and_keys_are_writable_only_if_used_once(origin: Origin) -> None:
    labels = screened_set(origin=origin)
    for matrix in (labels.queries, labels.keys["projected"]):
        assert matrix.flags.writeable == (origin == "request")
    assert labels.read_only == (origin != "store")
    assert (labels.digest, labels.calibration) == (DEFINITION.digest, None)


def screened_set(
    calibration: HeadCalibration | None = None, *, origin: Origin = "store"
) -> LabelSet:
    keys = {"projected": np.ones((3, 2), np.float32)}
    head = _head(1.0).model_copy(update={"calibration": calibration})
    vectors = LabelVectors(np.ones((3, 4), np.float32), keys)
    return make_open_set(DEFINITION, vectors, head, version="7", origin=origin)


@pytest.mark.parametrize(
    ("threshold", "shift"),
    [(None, [0, 0, 0]), ("calibrated", [1e6, -1e6, -np.log(9)]), (0.2, [np.log(4)] * 3)],
)
def test_screened_labels_reach_their_thresholds_from_rank_0(
    threshold: Threshold | None, shift: list[float]
) -> None:
    labels = screened_set()
    found = labels.screen(threshold, 10, labels.all_positions)
    assert found.wanted == 10
    assert found.scale.tolist() == [1, 1, 1]
    np.testing.assert_allclose(found.shift, shift, rtol=1e-6)
    assert found.scale.dtype == found.shift.dtype == np.float32


def test_screened_labels_are_ranked_by_their_calibration() -> None:
    labels = screened_set(PAIR)
    found = labels.screen(0.2, 10, labels.all_positions)
    assert found.scale.tolist() == [0.5] * 3
    np.testing.assert_allclose(found.shift, [np.log(4) - 2] * 3, rtol=1e-6)
    # A larger scale raises the rank for the errors of estimates.
    labels.calibration[:, 2] = (0.75, -1.0)
    found = labels.screen(None, 10, labels.all_positions)
    np.testing.assert_allclose(found.shift, [-2, -2, -1 + 4 * 0.25], rtol=1e-6)


def test_labels_that_are_not_chosen_rank_last() -> None:
    labels = screened_set()
    found = labels.screen(None, 10, np.array([0, 2]))
    assert found.shift.tolist() == [0, -1e6, 0]


def test_equal_questions_share_the_screened_labels() -> None:
    labels = screened_set()
    first = labels.screen(0.25, 10, np.array([0, 2]))
    assert labels.screen(0.25, 10, np.array([0, 2])) is first
    assert labels.screen(0.5, 10, np.array([0, 2])) is not first
    assert labels.screen(0.25, 11, np.array([0, 2])) is not first
    assert labels.screen(0.25, 10, np.array([1, 2])) is not first
    for wanted in range(100, 116):  # evicts the least recently used
        labels.screen(None, wanted, labels.all_positions)
    assert labels.screen(0.25, 10, np.array([0, 2])) is not first


def test_trained_label_with_its_own_calibration_does_not_take_the_heads() -> None:
    head = TrainedHead(kind="gap", num_labels=2, activation="sigmoid", calibration=PAIR)
    own = Calibration(scale=3.0, shift=1.0)
    labels = make_trained_set([Label(name="a"), Label(name="b", calibration=own)], head)
    assert labels.calibration.T.tolist() == [[0.5, -2.0], [3.0, 1.0]]


def test_open_label_is_calibrated_by_its_set_else_as_a_trained_name_else_by_the_head() -> None:
    trained = PAIR.model_copy(update={"scale": 0.9})
    head = _head(None).model_copy(update={"calibration": PAIR, "trained_names": trained})

    def scales(definition: Definition) -> list[float]:
        labels = open_set(definition, head, "yak")
        return list(labels.calibration[0])

    assert scales(DEFINITION) == [0.5, 0.9, 0.5]
    assert scales(replace(DEFINITION, names=("YAK", "Yak ", "y_ak"))) == [0.9, 0.9, 0.5]
    own = Calibration(scale=0.7, shift=0.0)
    assert scales(replace(DEFINITION, calibration=own)) == [0.7, 0.7, 0.7]


@pytest.mark.parametrize(
    ("thresholds", "pair", "head", "ranked"),
    [
        ((None, None, None), None, {}, True),
        ((None, None, None), None, {"kind": "ram"}, False),
        ((None, None, None), None, {"threshold": 0.3}, False),
        ((None, None, None), None, {"calibration": PAIR}, False),
        ((None, None, None), Calibration(scale=2.0, shift=-1.0), {}, False),
        ((None, 0.5, None), None, {}, False),
    ],
)
def test_labels_of_towers_are_ranked_unless_a_calibration_or_threshold_is_known(
    thresholds: tuple[float | None, ...], pair: Calibration | None, head: Any, ranked: bool
) -> None:
    definition = replace(DEFINITION, thresholds=thresholds, calibration=pair)
    towers = {"kind": "clip", "threshold": 0.5}
    labels = open_set(definition, _head(None).model_copy(update=towers | head))
    assert labels.ranked == ranked
    assert (labels.thresholds == 0).all() == ranked


def test_open_labels_compete_only_without_calibration() -> None:
    head = _head(None).model_copy(update={"activation": "softmax"})
    pair = Calibration(scale=2.0, shift=-1.0)
    for definition, calibration, expected in (
        (DEFINITION, None, "softmax"),
        (replace(DEFINITION, calibration=pair), None, "sigmoid"),
        (DEFINITION, PAIR, "sigmoid"),
    ):
        own = head.model_copy(update={"calibration": calibration})
        assert open_set(definition, own).activation == expected
