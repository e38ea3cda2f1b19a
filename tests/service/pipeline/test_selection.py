"""Tests of selection: a label's score does not depend on the other sets and labels asked for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bundle.reader import Bundle
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD, SomeQueries, ZeroHead
from service.errors import ConflictingLabels, UnknownLabel
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.sources.source import Untold
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from tests.service.pipeline.conftest import make_learnt
from tests.support.tiny_bundle import PLAIN_HEAD, SIDE, TINY_LABELS, random_label_set

# Runs over other numbers of labels may sum in another order.
TOLERANCE = 1e-5
TRAINED = make_trained_set(TINY_LABELS, PLAIN_HEAD)
NAMES = [f"label {i}" for i in range(6)] + [label.name for label in TINY_LABELS]


label_names = st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=len(NAMES))
several_sets = st.lists(label_names, min_size=1, max_size=4).map(
    lambda lists: [random_label_set(i, names) for i, names in enumerate(lists)]
)


@pytest.fixture(scope="module")
def engine(open_bundle: Bundle) -> Engine:
    return open_engine(open_bundle, device="cpu", max_batch_size=1, threads=1)


def ask(engine: Engine, sets: list[LabelSet], question: Question) -> dict[str, tuple[float, str]]:
    selection = select_labels(sets, question)
    image = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)
    ((logits, *_),) = engine.run(image, [selection.heads])
    return {found.label: (found.score, found.source) for found in score_labels(logits, selection)}


def assert_same(
    found: dict[str, tuple[float, str]], expected: dict[str, tuple[float, str]]
) -> None:
    assert found.keys() == expected.keys()
    for name, (score, source) in expected.items():
        assert found[name] == (pytest.approx(score, abs=TOLERANCE), source)


@settings(max_examples=40)
@given(several_sets, st.integers(0, 4))
def test_scores_of_several_sets_equal_those_of_each_alone(
    engine: Engine, sets: list[LabelSet], place: int
) -> None:
    sets = [*sets[:place], TRAINED, *sets[place:]]
    everything = Question(top_k=1000)
    expected: dict[str, tuple[float, str]] = {}
    for labels in sets:  # the first set that has a name answers it
        expected = ask(engine, [labels], everything) | expected
    assert_same(ask(engine, sets, everything), expected)


@settings(max_examples=40)
@given(several_sets, st.data())
def test_scores_do_not_depend_on_include_and_exclude(
    engine: Engine, sets: list[LabelSet], data: st.DataObject
) -> None:
    sets = [*sets, TRAINED]
    whole = ask(engine, sets, Question(top_k=1000))
    some = data.draw(st.sets(st.sampled_from(sorted(whole)), min_size=1))
    included = ask(engine, sets, Question(top_k=1000, include=tuple(sorted(some))))
    excluded = ask(engine, sets, Question(top_k=1000, exclude=tuple(sorted(some))))
    assert_same(included, {name: found for name, found in whole.items() if name in some})
    assert_same(excluded, {name: found for name, found in whole.items() if name not in some})


def test_labels_of_a_registered_set_that_an_earlier_set_answers_are_hidden() -> None:
    others = replace(random_label_set(0, ["yak", "cat", "newt"]), origin="bundle")
    mine = replace(random_label_set(1, ["newt", "ox", "yak"]), name="mine", origin="store")
    for sets, question, hidden in (
        ([others, mine], Question(), ("newt", "yak")),
        ([others, mine], Question(exclude=("newt",)), ("yak",)),
        ([others, mine], Question(include=("yak", "ox")), ("yak",)),
        ([others, mine], Question(include=("cat", "ox")), None),
        ([mine, others], Question(), None),
        ([mine], Question(exclude=("yak",)), None),
        ([others, replace(mine, origin="bundle")], Question(), None),
    ):
        assert select_labels(sets, question).hidden.get("mine") == hidden
    found = select_labels([others, mine], Question()).describe_hidden()
    assert found == "labels answered by a set named before theirs: 2 of mine"


def test_set_does_not_run_without_a_chosen_label() -> None:
    sets = [random_label_set(0, ["yak"]), TRAINED]
    selection = select_labels(sets, Question(include=("cat",)))
    assert selection.heads == (TRAINED_HEAD,)
    assert selection.sets == tuple(sets)


def test_set_without_texts_runs_no_head_and_learnt_labels_need_the_embedding() -> None:
    texts, learnt = random_label_set(0, ["yak"]), make_learnt(random_label_set(1, ["ox"]), "ox")
    for sets, question, embeds in (
        ([texts, TRAINED], Question(), False),
        ([texts], Question(embedding=True), True),
        ([texts, learnt], Question(), True),
        ([texts, learnt], Question(include=["yak"]), False),
        ([replace(texts, source=Untold(1))], Question(), True),
    ):
        assert select_labels(sets, question).embeds == embeds
    assert select_labels([replace(learnt, source=Untold(1))], Question()).heads == (ZeroHead(1),)


def test_set_shares_its_queries_if_at_least_half_is_chosen() -> None:
    labels, others = random_label_set(0, ["yak", "newt", "cat"]), random_label_set(1, ["cat"])
    for sets, question, chosen in (
        ([labels], Question(), [0, 1, 2]),
        ([labels], Question(exclude=("yak",)), [1, 2]),
        ([others, labels], Question(), [0, 1]),
    ):
        part = select_labels(sets, question).parts[-1]
        assert part.chosen.tolist() == chosen
        assert part.head is labels.queries
    # Others copy their rows when they run.
    (part,) = select_labels([labels], Question(include=("newt",))).parts
    assert isinstance(part.head, SomeQueries)
    assert part.head.queries is labels.queries
    assert len(part.head) == 1


def test_names_are_found_in_any_unicode_form_and_wrong_ones_listed_once() -> None:
    labels = random_label_set(0, ["caf\u00e9", "yak", "newt"])
    (part,) = select_labels([labels], Question(include=(" cafe\u0301",))).parts
    assert part.chosen.tolist() == [0]
    with pytest.raises(UnknownLabel) as unknown:
        select_labels([labels], Question(include=("yak", "x", "y"), exclude=("x", "z")))
    assert str(unknown.value).startswith("'x', 'y', 'z'")
    both = Question(include=("cafe\u0301", "yak", "newt"), exclude=("newt", "caf\u00e9"))
    with pytest.raises(ConflictingLabels) as conflict:
        select_labels([labels], both)
    assert str(conflict.value).startswith("'caf\u00e9', 'newt':")


def test_softmax_is_over_the_whole_set_whatever_is_included(engine: Engine) -> None:
    labels = replace(random_label_set(0, ["yak", "newt", "cat"]), activation="softmax")
    whole = ask(engine, [labels], Question(top_k=3))
    assert sum(score for score, _ in whole.values()) == pytest.approx(1)
    some = ask(engine, [labels], Question(top_k=3, include=("newt",)))
    assert_same(some, {"newt": whole["newt"]})
