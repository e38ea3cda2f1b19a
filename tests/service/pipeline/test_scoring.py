"""Tests of activation, thresholds, top-k, include and exclude."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.card import FALLBACK_THRESHOLD, Activation, Label, TrainedHead
from service.engine.heads import ScreenedLogits
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.sources.source import Untold
from service.pipeline.scoring import ScoredLabel, compute_scores, score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from tests.service.pipeline.conftest import make_learnt
from tests.support.tiny_bundle import PLAIN_HEAD, WIDTH, make_by_purpose, random_label_set

TRAINED = [
    Label(name="a", threshold=0.9),
    Label(name="b", threshold=0.2),
    Label(name="c"),
    Label(name="d", threshold=0.6),
]
SCORES = {"a": 0.8, "b": 0.3, "c": 0.5, "d": 0.5}
# A logit of 0 is a score of exactly 0.5, the fallback threshold of "c".
LOGITS = np.array([np.log(s / (1 - s)) for s in SCORES.values()])
HEADS: dict[Activation, TrainedHead] = {
    activation: PLAIN_HEAD.model_copy(update={"activation": activation})
    for activation in get_args(Activation)
}

finite = st.floats(-1e4, 1e4, width=32)


def ask(
    question: Question, logits: Any = LOGITS, activation: Activation = "sigmoid"
) -> tuple[ScoredLabel, ...]:
    selection = select_labels([make_trained_set(TRAINED, HEADS[activation])], question)
    return score_labels([logits] * len(selection.parts), selection)


@pytest.mark.parametrize(
    ("activation", "question", "expected"),
    [
        ("softmax", Question(), ["a"]),
        ("softmax", Question(top_k=2), ["a", "c"]),
        ("softmax", Question(threshold=0.0), ["a", "c", "d", "b"]),
        *(("sigmoid", *case) for case in [
        (Question(), ["c", "b"]),
        (Question(threshold="calibrated"), ["c", "b"]),
        (Question(threshold=0.45), ["a", "c", "d"]),
        (Question(threshold=0.0), ["a", "c", "d", "b"]),
        (Question(threshold=1.0), []),
        (Question(top_k=1), ["a"]),
        (Question(top_k=3), ["a", "c", "d"]),
        (Question(top_k=1_000_000_000), ["a", "c", "d", "b"]),
        (Question(top_k=1, threshold="calibrated"), ["c"]),
        (Question(top_k=2, threshold=0.6), ["a"]),
        (Question(include=("b", "a")), ["b"]),
        (Question(include=("b", "a"), top_k=5), ["a", "b"]),
        (Question(exclude=("c",)), ["b"]),
        (Question(exclude=("c", "b"), top_k=9), ["a", "d"]),
        (Question(include=("b",)), ["b"]),
        (Question(exclude=("a", "b", "c", "d"), top_k=1), []),
        (Question(include=("b", "b"), exclude=("a", "a")), ["b"]),
        ]),
    ],
)  # fmt: skip
def test_question_answers_with_these_labels_best_first(
    activation: Activation, question: Question, expected: list[str]
) -> None:
    assert [label.label for label in ask(question, activation=activation)] == expected


def rank(names: str) -> LabelSet:
    return replace(random_label_set(0, names), ranked=True, thresholds=np.zeros(len(names)))


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(), "gfedc"),
        (Question(threshold="calibrated"), "gfedc"),
        (Question(top_k=2), "gf"),
        (Question(threshold=0.0), "gfedcba"),
    ],
)
def test_ranked_set_answers_with_its_five_best_whatever_their_scores(
    question: Question, expected: str, activation: Activation
) -> None:
    selection = select_labels([replace(rank("abcdefg"), activation=activation)], question)
    found = score_labels([np.arange(-7.0, 0.0)] * len(selection.parts), selection)
    assert "".join(label.label for label in found) == expected


def test_sets_beside_a_ranked_one_answer_by_their_thresholds() -> None:
    sets = [make_trained_set(TRAINED, PLAIN_HEAD), rank("uvwxyz")]
    found = score_labels([LOGITS, np.arange(6.0)], select_labels(sets, Question()))
    assert [label.label for label in found] == ["z", "y", "x", "w", "v", "c", "b"]


NUMBERED = make_trained_set([Label(name=str(i)) for i in range(600)], PLAIN_HEAD)


def answer(question: Question, logits: NDArray[np.float64]) -> list[str]:
    found = score_labels([logits], select_labels([NUMBERED], question))
    return [label.label for label in found]


def test_nan_logits_are_last() -> None:
    logits = np.where(np.arange(600) % 3 == 0, np.nan, np.arange(600.0) / 600)
    assert answer(Question(top_k=3), logits) == ["599", "598", "596"]


@given(seed=st.integers(0, 1000), top_k=st.integers(1, 700))
def test_top_k_is_the_head_of_the_full_order_in_which_equal_scores_keep_theirs(
    seed: int, top_k: int
) -> None:
    logits = np.random.default_rng(seed).choice([-2.0, -1.0, 0.0, 1.0], 600)
    in_order = sorted(range(600), key=lambda position: (-logits[position], position))
    found = answer(Question(top_k=top_k), logits)
    assert found == [str(position) for position in in_order[:top_k]]


def test_several_sets_answer_best_first_and_equal_scores_in_the_order_of_the_sets() -> None:
    ours = (make_trained_set(TRAINED, PLAIN_HEAD), LOGITS)
    others = (random_label_set(0, ["x", "y"]), np.array([0.0, 9.0]))

    def ask_both(*sets: tuple[LabelSet, Any], top_k: int) -> list[str]:
        selection = select_labels([labels for labels, _ in sets], Question(top_k=top_k))
        return [found.label for found in score_labels([v for _, v in sets], selection)]

    assert ask_both(ours, others, top_k=9) == ["y", "a", "c", "d", "x", "b"]
    assert ask_both(others, ours, top_k=9) == ["y", "a", "x", "c", "d", "b"]
    assert ask_both(ours, others, top_k=3) == ["y", "a", "c"]


def test_softmax_answers_by_thresholds_next_to_another_set() -> None:
    sets = [make_trained_set(TRAINED, HEADS["softmax"]), random_label_set(0, ["x", "y"])]
    answer = score_labels([LOGITS, np.array([9.0, 8.0])], select_labels(sets, Question()))
    assert [label.label for label in answer] == ["x", "y"]


TAGS = make_trained_set(
    [
        Label(name="low", category="rating", threshold=0.9),
        Label(name="sun", category="general", threshold=0.4),
        Label(name="high", category="rating", threshold=0.9),
        Label(name="odd", threshold=0.1),
        Label(name="ann", category="character", threshold=0.8),
    ],
    PLAIN_HEAD.model_copy(update={"by_purpose": make_by_purpose(0.3, 0.2)}),
)
TAG_LOGITS = np.array([-3.0, 0.0, -2.0, -1.0, 1.0])


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Question(), ["sun", "odd", "high"]),
        (Question(threshold=0.1), ["ann", "sun", "odd", "high"]),
        (Question(top_k=9), ["ann", "sun", "odd", "high", "low"]),
        (Question(threshold="calibrated", top_k=9), ["sun", "odd"]),
        (Question(threshold="balanced"), ["ann", "sun", "high"]),
        (Question(threshold="balanced", top_k=9), ["ann", "sun"]),
        (Question(exclude=["high", "low"]), ["sun", "odd"]),
        (Question(category=["rating"], top_k=5), ["high", "low"]),
        (Question(category=["character", "general"]), ["sun"]),
        (Question(category=["general"], include=["ann"]), []),
        (Question(category=["rating"], exclude=["high"]), []),
        (Question(include=["low"]), []),
    ],
)
@pytest.mark.parametrize("hiding", [False, True])
def test_category_restricts_the_labels_and_of_ratings_the_best_is_in_the_answer(
    question: Question, expected: list[str], hiding: bool
) -> None:
    # A set without categories does not hide labels if a category is asked for.
    other = random_label_set(0, ["low"] if question.category else ["x"])
    sets = [replace(other, shared=TAGS.shared)] * hiding + [TAGS]
    selection = select_labels(sets, question)
    logits = [TAG_LOGITS if each.labels.categories else [-9.0] for each in selection.parts]
    shown = score_labels([np.array(each) for each in logits], selection)
    assert [label.label for label in shown if label.source == "trained"] == expected
    for label in shown:
        assert label.category == TAGS.categories.get(label.label)


def test_softmax_with_ratings_answers_with_its_best_label() -> None:
    tags = replace(TAGS, activation="softmax")
    for question, expected in ((Question(), ["ann"]), (Question(threshold="calibrated"), [])):
        answer = score_labels([TAG_LOGITS], select_labels([tags], question))
        assert [label.label for label in answer] == expected


def test_label_has_its_threshold_and_the_threshold_its_source() -> None:
    own = {label.label: label for label in ask(Question(top_k=4))}
    number = ask(Question(threshold=0.25))
    assert (own["a"].threshold, own["a"].calibrated) == (0.9, True)
    assert (own["c"].threshold, own["c"].calibrated) == (FALLBACK_THRESHOLD, False)
    assert {(label.threshold, label.calibrated) for label in number} == {(0.25, False)}
    assert {label.source for label in number} == {"trained"}


@given(st.lists(finite, min_size=1, max_size=20), st.sampled_from(get_args(Activation)))
def test_any_finite_logits_give_scores_in_the_order_of_the_logits(
    logits: list[float], activation: Activation
) -> None:
    scores = compute_scores(np.array(logits, np.float32), activation)
    assert ((scores >= 0) & (scores <= 1)).all()
    order = np.argsort(logits, kind="stable")
    assert (np.diff(scores[order]) >= 0).all()


def test_scores_are_sigmoid_and_softmax() -> None:
    logits = np.array([0.0, np.log(3.0)])
    assert compute_scores(logits, "sigmoid") == pytest.approx([0.5, 0.75])
    assert compute_scores(logits, "softmax") == pytest.approx([0.25, 0.75])


EMBEDDING = np.full(WIDTH, WIDTH**-0.5, np.float32)


@pytest.mark.parametrize("calibration", [None, np.array([[2.0, 1.0, 0.5], [0.1, 0.0, -1.0]])])
def test_learnt_label_adds_its_score_to_the_calibrated_logit(
    calibration: NDArray[np.float64] | None,
) -> None:
    labels = make_learnt(random_label_set(0, ["x", "y", "z"]), "x", "z", shift=0.5)
    labels = replace(labels, calibration=calibration)
    logits = np.array([0.5, -0.5, 1.0], np.float32)
    values = logits if calibration is None else logits * calibration[0] + calibration[1]
    values = values + np.insert(labels.learnt.vectors @ EMBEDDING + 0.5, 1, 0.0)
    expected = dict(zip(labels.names, 1 / (1 + np.exp(-values)), strict=True))
    screened = ScreenedLogits(logits[[0, 2]], np.array([0, 2]))
    for some, include, names in (
        (logits, None, "xyz"), (logits[2:], ["z"], "z"), (logits, ["x", "y"], "xy"),
        (screened, None, "xz"),
    ):  # fmt: skip
        selection = select_labels([labels], Question(top_k=3, include=include))
        found = score_labels([some], selection, EMBEDDING)
        assert {x.label: x.score for x in found} == pytest.approx({n: expected[n] for n in names})
        for label in found:
            assert label.source == ("zero_shot" if label.label == "y" else "examples")


def test_label_without_text_and_examples_has_the_score_0() -> None:
    labels = make_learnt(replace(random_label_set(0, ["x", "y"]), source=Untold(2)), "y", shift=9.0)
    for each, found in ((labels, {"y"}), (replace(labels, learnt=None), set())):
        selection = select_labels([each], Question(top_k=2))
        scored = score_labels([np.zeros(2, np.float32)], selection, EMBEDDING)
        assert [label.source for label in scored] == ["examples"] * 2
        assert {label.label for label in scored if label.score > 1e-6} == found
