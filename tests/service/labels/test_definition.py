"""Definitions: JSON becomes columns in one normal form, or is refused with a reason."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.bundle.card import EmbeddingSpace
from service.errors import InvalidLabelSet
from service.fields import normalise_text
from service.labels.definition import (
    EMBEDDING_LENGTHS,
    Definition,
    LabelSetRecord,
    OpenLabel,
    check_embeddings,
    check_fit,
)

# Of a set of the first version, which stores have.
DIGEST = "cf64e281c7af703708f00c29b52d9b4f11ea8e0f2f44312eefb902f255d6fea9"


def define(**values: Any) -> Definition:
    return LabelSetRecord.model_validate({"name": "pets", **values}).define()


@given(st.lists(st.sampled_from(["a", "b", "e\u0301", "\u00e9", " a"]), min_size=1, max_size=5))
def test_duplicate_names_are_refused_in_normal_form(names: list[str]) -> None:
    normal = tuple(normalise_text(name) for name in names)
    if len(set(normal)) < len(normal):
        with pytest.raises(InvalidLabelSet, match=r"twice, as labels \d and \d of \d: remove one"):
            define(labels=names)
    else:
        assert define(labels=names).names == normal


def test_columns_keep_the_order_of_the_labels() -> None:
    found = define(
        labels=[
            "cat",
            {"name": "dog", "embedding": [3, 4], "threshold": 0},
            {"name": "yak", "prompt": " a yak "},
            {"name": "newt", "embedding": [1, 2]},
        ]
    )
    assert found.names == ("cat", "dog", "yak", "newt")
    assert found.prompts == (None, None, "a yak", None)
    assert found.thresholds == (None, 0.0, None, None)
    assert found.given == (1, 3)
    np.testing.assert_array_equal(found.embeddings, np.array([[3, 4], [1, 2]], np.float32))


def test_answer_is_read_without_its_threshold_if_not_calibrated() -> None:
    ignored = {"version": "7", "origin": "store", "read_only": False, "num_labels": 9}
    ignored["num_learnt"] = 1
    first = {"name": "a", "prompt": None, "threshold": 0.3, "calibrated": False}
    second = {"name": "b", "threshold": 0.4, "calibrated": True, "own_embedding": False}
    second["examples"] = {"positive": 2, "negative": 0}
    record = LabelSetRecord.model_validate({"name": "x", "labels": [first, second], **ignored})
    written = {"name": "x", "labels": [{"name": "a"}, {"name": "b", "threshold": 0.4}]}
    assert record.model_dump(exclude_none=True) == written
    assert define(labels=[first, second]).digest == define(labels=written["labels"]).digest


def test_label_with_own_embedding_is_refused_without_it() -> None:
    label = {"name": "a", "own_embedding": True}
    for text in ({}, {"prompt": "an a"}):
        with pytest.raises(ValidationError, match="embedding of its own, which answers omit"):
            define(labels=[label | text])
    assert define(labels=[label | {"embedding": [1.0, 0.0]}]).given == (0,)


def test_name_is_encoded_with_spaces_for_underscores_and_a_prompt_as_it_is() -> None:
    space = EmbeddingSpace(encoder="any", width=2, template="a photo of {}")
    found = define(labels=["{} wooden_table", {"name": "oak_chair", "prompt": "my_{}"}])
    assert found.texts(space) == ("a photo of {} wooden table", "my_{}")
    assert found.names == ("{} wooden_table", "oak_chair")


def test_set_without_a_calibration_keeps_the_digest_of_earlier_versions() -> None:
    definition = define(labels=["cat", {"name": "yak", "threshold": 0.25}])
    assert definition.digest == DIGEST
    calibrated = define(
        labels=["cat", {"name": "yak", "threshold": 0.25}], calibration={"scale": 1.0, "shift": 0.0}
    )
    assert calibrated.digest != DIGEST


@pytest.mark.parametrize(
    ("scale", "shift"), [(0.0, 0.0), (-1.0, 0.0), (math.inf, 0.0), (1.0, math.nan), (1.0, None)]
)
def test_calibration_that_would_turn_or_lose_the_order_is_refused(
    scale: float, shift: float | None
) -> None:
    with pytest.raises(ValidationError):
        define(labels=["cat"], calibration={"scale": scale, "shift": shift})


def test_digest_differs_for_every_difference() -> None:
    other = [{"threshold": 0.5}, {"prompt": "an a"}, {"embedding": [1, 2]}, {"embedding": [1, 3]}]
    sets: list[Any] = [[{"name": "a", **values}, "b"] for values in other]
    sets += [["a", "b"], ["b", "a"], ["a"], ["a", {"name": "b", "embedding": [1, 2]}]]
    assert len({define(labels=labels).digest for labels in sets}) == len(sets)
    assert define(labels=["a", " b "]).digest == define(labels=["a", "b"]).digest


def test_embeddings_of_two_widths_are_refused() -> None:
    labels = [{"name": "a", "embedding": [1, 2]}, {"name": "b", "embedding": [1, 2, 3]}]
    with pytest.raises(InvalidLabelSet, match="same number of values, not 2 and 3"):
        define(labels=labels)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1.0, 2.0], "needs 3 values"),
        ([1.0, np.nan, 1.0], "not finite"),
        ([1.0, -np.inf, 1.0], "not finite"),
        ([0.0, 0.0, 0.0], "length"),
        ([1e-30, 0.0, 0.0], "length"),
        ([1e30, 0.0, 0.0], "length"),
    ],
)
def test_unusable_embedding_is_refused(row: list[float], reason: str) -> None:
    good = np.ones((2, 3), np.float32)
    with pytest.raises(InvalidLabelSet, match=reason):
        check_embeddings(np.array([row], np.float32), 3)
    if len(row) == 3:
        with pytest.raises(InvalidLabelSet, match=f"Embedding 3 of 3 .*{reason}"):
            check_embeddings(np.vstack([good, np.array([row], np.float32)]), 3)
    check_embeddings(good, 3)
    check_embeddings(np.zeros((0, 0), np.float32), 3)


@given(st.floats(*np.log10(EMBEDDING_LENGTHS)), st.integers(0, 99))
def test_embedding_of_a_usual_length_is_accepted(exponent: float, seed: int) -> None:
    row = np.random.default_rng(seed).normal(size=(1, 3))
    length = 10**exponent * (0.999 if exponent > 0 else 1.001)  # rounding at the limits
    check_embeddings((row / np.linalg.norm(row) * length).astype(np.float32), 3)


@pytest.mark.parametrize("given", [1, 2, 3])
def test_set_of_few_descriptions_is_filled_up_with_zeros(given: int) -> None:
    space = EmbeddingSpace(encoder="letters", width=6, template="{}", descriptions=3)
    rows = [[1.0] * 2 * given, [2.0] * 2 * given]
    labels = [{"name": name, "embedding": row} for name, row in zip("ab", rows, strict=True)]
    fitted = check_fit(define(labels=labels), space, encodes_text=False)
    wanted = np.repeat([[1.0], [2.0]], 6, axis=1) * (np.arange(6) < 2 * given)
    np.testing.assert_array_equal(fitted.embeddings, wanted)
    assert check_fit(fitted, space, encodes_text=False) is fitted


@pytest.mark.parametrize(("width", "descriptions"), [(0, 3), (3, 3), (8, 3), (2, 1), (0, 1)])
def test_set_whose_embeddings_are_no_whole_descriptions_is_refused(
    width: int, descriptions: int
) -> None:
    space = EmbeddingSpace(encoder="letters", width=6, template="{}", descriptions=descriptions)
    with pytest.raises(InvalidLabelSet, match=f"needs 6 values; these have {width}"):
        check_fit(
            define(labels=[{"name": "a", "embedding": [1.0] * width}]), space, encodes_text=False
        )


def test_threshold_of_a_fit_in_an_answer_is_not_the_labels_own() -> None:
    answer = {"name": "cat", "threshold": 0.4, "calibrated": True, "fit": {"threshold": 0.4}}
    assert OpenLabel.model_validate(answer).threshold is None
    assert OpenLabel.model_validate(answer | {"threshold": 0.9}).threshold == 0.9
