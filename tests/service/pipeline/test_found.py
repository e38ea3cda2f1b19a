"""The law of `found`: such labels answer the same question without `top_k` and `min_labels`."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.card import Label
from service.engine.heads import LabelVectors, ScreenedLogits, ScreenedQueries, SomeQueries
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.sources.source import Texts, Untold
from service.pipeline.scoring import ScoredLabel, score_labels
from service.pipeline.selection import SelectedLabels, select_labels
from service.question import Question
from tests.service.pipeline.conftest import make_learnt
from tests.support.tiny_bundle import PLAIN_HEAD, WIDTH, make_by_purpose, random_label_set

EMBEDDING = np.full(WIDTH, WIDTH**-0.5, np.float32)
KINDS = ("trained", "softmax", "ratings", "open", "ranked", "ranked softmax", "learnt", "examples")
# Few values, so that scores are equal to each other and to thresholds.
LOGITS = (-4.0, -1.0, 0.0, 0.0, 1.0, 3.0, np.nan)

thresholds = st.sampled_from([None, 0.0, 0.5, 0.9, 1.0, "calibrated", "balanced", "precise"])
limits = st.one_of(
    st.builds(lambda number: {"top_k": number}, st.integers(1, 12)),
    st.builds(lambda number: {"min_labels": number}, st.integers(1, 12)),
)


def make_set(kind: str, names: list[str], seed: int) -> LabelSet:
    rng = np.random.default_rng(seed)
    own = rng.choice([0.1, 0.5, 0.9], len(names))
    shared = make_by_purpose(0.3, 0.2, 0.7)
    if kind in ("trained", "softmax", "ratings"):
        head = PLAIN_HEAD.model_copy(update={"by_purpose": shared})
        if kind == "softmax":
            head = head.model_copy(update={"activation": "softmax"})
        categories = ["rating" if kind == "ratings" and i % 2 else None for i in range(len(names))]
        rows = zip(names, own, categories, strict=True)
        labels = [Label(name=n, threshold=least, category=c) for n, least, c in rows]
        return make_trained_set(labels, head)
    opened = replace(random_label_set(seed, names), thresholds=own, shared=shared)
    if kind.startswith("ranked"):
        activation = "softmax" if kind.endswith("softmax") else "sigmoid"
        opened = replace(opened, ranked=True, thresholds=np.zeros(len(names)))
        return replace(opened, activation=activation)
    if kind in ("learnt", "examples"):
        opened = make_learnt(opened, *names[::2])
    return replace(opened, source=Untold(len(opened.names))) if kind == "examples" else opened


@st.composite
def several_sets(draw: st.DrawFn) -> list[LabelSet]:
    numbers = count()
    sets = []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)):
        names = [f"label {next(numbers)}" for _ in range(draw(st.integers(1, 9)))]
        sets.append(make_set(kind, names, draw(st.integers(0, 99))))
    return sets


def answer(
    sets: list[LabelSet], seed: int, question: dict[str, Any], *, screens: bool = False
) -> tuple[ScoredLabel, ...]:
    """Scores random logits, of which a screened head keeps what it must."""
    selection = select_labels(sets, Question(**question))
    logits: list[NDArray[np.floating] | ScreenedLogits] = []
    for part in selection.parts:
        rng = np.random.default_rng([seed, len(part.labels.names)])
        if screens:
            logits.append(
                screen(part, rng.normal(-2.0, 2.0, len(part.labels.names)).astype(np.float32))
            )
            continue
        values = rng.choice(LOGITS, len(part.labels.names))
        logits.append(values[part.chosen] if isinstance(part.head, SomeQueries) else values)
    return score_labels(logits, selection, EMBEDDING)


def assert_law(
    everything: tuple[ScoredLabel, ...],
    plain: tuple[ScoredLabel, ...],
    limited: tuple[ScoredLabel, ...],
    limit: dict[str, int],
) -> None:
    """`everything` is the answer with all labels, `plain` the one without a limit."""
    assert all(label.found for label in plain)
    wanted = {label.label for label in plain}
    assert [label.found for label in limited] == [label.label in wanted for label in limited]
    if least := limit.get("min_labels"):
        others = [label.label for label in everything if label.label not in wanted]
        kept = wanted | set(others[: max(0, least - len(wanted))])
        expected = [label.label for label in everything if label.label in kept]
        assert [label.label for label in limited] == expected


@given(several_sets(), thresholds, limits, st.integers(0, 999), st.data())
def test_found_labels_are_those_of_the_question_without_a_limit(
    sets: list[LabelSet], threshold: Any, limit: dict[str, int], seed: int, data: st.DataObject
) -> None:
    names = [name for labels in sets for name in labels.names]
    asked: dict[str, Any] = {"threshold": threshold}
    if len(names) > 2 and data.draw(st.booleans()):
        asked["exclude"] = data.draw(st.lists(st.sampled_from(names), max_size=len(names) // 2))
    plain, limited = (answer(sets, seed, asked | more) for more in ({}, limit))
    order = {**asked, "threshold": None, "top_k": 1000}
    assert_law(answer(sets, seed, order), plain, limited, limit)


def screen(part: SelectedLabels, values: NDArray[np.float32]) -> NDArray[Any] | ScreenedLogits:
    """Returns the logits that an exact screen keeps: those it must, and no others."""
    head = part.head
    if not isinstance(head, ScreenedQueries):
        return values
    keys = head.scale * values + head.shift
    kept = keys >= 0
    kept[np.argsort(-keys, kind="stable")[: head.wanted]] = True
    return ScreenedLogits(values[kept], np.flatnonzero(kept))


@given(
    thresholds.filter(lambda threshold: threshold != 0.0),
    st.one_of(limits, st.just({"min_labels": 60}), st.just({"top_k": 60})),
    st.sampled_from(["open", "ranked", "learnt"]),
    st.integers(0, 999),
)
def test_screen_keeps_what_answers_and_their_flags_need(
    threshold: Any, limit: dict[str, int], kind: str, seed: int
) -> None:
    names = [f"label {i}" for i in range(700)]
    full = make_set(kind, names, seed)
    if kind == "learnt":
        full = replace(full, learnt=make_learnt(full, *names[::100]).learnt)
    sets = [replace(full, source=Texts(LabelVectors(full.queries, {})))]
    asked = {"threshold": threshold, "exclude": names[: seed % 50]}
    assert isinstance(select_labels(sets, Question(**asked)).heads[0], ScreenedQueries)
    for question in (asked, asked | limit):
        screened = answer(sets, seed, question, screens=True)
        wanted = answer([full], seed, question, screens=True)
        assert [label[:1] + label[2:] for label in screened] == [
            label[:1] + label[2:] for label in wanted
        ]
        assert [label.score for label in screened] == pytest.approx([x.score for x in wanted])


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"top_k": 3}, {"f": True, "e": False, "c": False}),
        ({"min_labels": 1}, {"f": True, "a": True}),
        ({"min_labels": 3}, {"f": True, "e": False, "a": True}),
        (
            {"min_labels": 9},
            dict(zip("fecdba", (True, False, False, False, False, True), strict=True)),
        ),
    ],
)
def test_label_of_a_low_threshold_is_found_below_others(
    limit: dict[str, int], expected: dict[str, bool]
) -> None:
    least = {"a": 0.1, "f": 0.5}
    labels = make_trained_set(
        [Label(name=n, threshold=least.get(n, 0.9)) for n in "abcdef"], PLAIN_HEAD
    )
    selection = select_labels([labels], Question(**limit))
    found = score_labels([np.array([-2.0, -1.0, 0.0, -0.5, 1.0, 2.0])], selection)
    assert {label.label: label.found for label in found} == expected
    assert [label.label for label in found] == list(expected)
