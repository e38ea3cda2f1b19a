"""Label sets: columns in the order of the logits, thresholds with their fallback, read-only."""

from dataclasses import replace

import numpy as np
import pytest

from service.bundle.card import Label
from service.labels.definition import Definition
from service.labels.label_set import (
    FALLBACK_THRESHOLD,
    LabelSet,
    Origin,
    make_open_set,
    make_trained_set,
)

DEFINITION = Definition("pets", ("cat", "yak", "newt"), (None, "a yak", None), (0.0, None, 0.9))


def open_set(fallback: float | None = 0.3, origin: Origin = "store") -> LabelSet:
    queries = np.ones((3, 4), np.float32)
    return make_open_set(DEFINITION, queries, version="7", origin=origin, fallback=fallback)


@pytest.mark.parametrize(("fallback", "expected"), [(0.3, 0.3), (0.0, 0.0), (None, 0.5)])
def test_label_without_threshold_takes_the_fallback_and_is_not_calibrated(
    fallback: float | None, expected: float
) -> None:
    labels = open_set(fallback)
    assert labels.thresholds.tolist() == [0.0, expected, 0.9]
    assert labels.calibrated.tolist() == [True, False, True]


def test_trained_labels_keep_their_thresholds() -> None:
    labels = make_trained_set([Label(name="a", threshold=0.0), Label(name="b")])
    assert labels.thresholds.tolist() == [0.0, FALLBACK_THRESHOLD]
    assert labels.calibrated.tolist() == [True, False]
    assert (labels.source, labels.queries) == ("trained", None)


def test_set_keeps_the_digest_of_its_definition() -> None:
    assert open_set().digest == DEFINITION.digest
    assert make_trained_set([Label(name="a")]).digest is None


def test_own_embeddings_marks_labels_that_came_with_one() -> None:
    definition = replace(DEFINITION, given=(0, 2), embeddings=np.ones((2, 4), np.float32))
    queries = np.ones((3, 4), np.float32)
    labels = make_open_set(definition, queries, version="7", origin="store", fallback=None)
    assert labels.own_embeddings.tolist() == [True, False, True]
    assert not open_set().own_embeddings.any()
    assert make_trained_set([Label(name="a")]).own_embeddings.tolist() == [False]


@pytest.mark.parametrize(("origin", "writable"), [("store", False), ("request", True)])
def test_queries_are_writable_only_if_used_once(origin: Origin, *, writable: bool) -> None:
    queries = open_set(origin=origin).queries
    assert queries is not None
    assert queries.flags.writeable is writable


def test_positions_are_the_indices_of_the_names() -> None:
    labels = open_set()
    assert [labels.names[labels.positions[name]] for name in labels.names] == list(labels.names)


@pytest.mark.parametrize("origin", ["model", "bundle", "folder", "request"])
def test_all_sets_but_those_of_the_store_are_read_only(origin: Origin) -> None:
    assert open_set(origin=origin).read_only
    assert not open_set(origin="store").read_only
