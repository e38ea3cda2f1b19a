"""Tests of the parameters: both places check alike, and must not contradict each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from service.errors import InvalidLabelSet, InvalidParameters, RepeatedField
from service.http.requests.parameters import (
    LIST_PARAMETERS,
    SINGLE_PARAMETERS,
    Parameters,
    merge_aside,
    merge_parameters,
    read_parameters,
)
from service.labels.question import Question


def test_every_parameter_is_either_single_or_a_list() -> None:
    assert sorted(SINGLE_PARAMETERS) == ["explain", "min_version", "threshold", "top_k"]
    assert sorted(LIST_PARAMETERS) == ["candidate_labels", "exclude", "include", "label_set"]


def test_parameters_of_both_places_are_put_together() -> None:
    query = merge_parameters(Parameters(top_k=3), {"threshold": "0.5", "include": ["cat"]})
    assert query == Question(top_k=3, threshold=0.5, include=("cat",))


def test_nothing_given_leaves_the_defaults_of_the_query() -> None:
    assert merge_parameters(Parameters(), {}) == Question()


def test_same_value_in_both_places_is_no_conflict() -> None:
    assert merge_parameters(Parameters(top_k=3), {"top_k": "3"}) == Question(top_k=3)


@pytest.mark.parametrize(
    ("name", "query", "body"),
    [
        ("top_k", 3, 4),
        ("threshold", 0.5, "calibrated"),
        ("include", ["cat"], ["dog"]),
        ("explain", True, "overlay"),
        ("explain", False, True),
    ],
)
def test_different_values_in_both_places_conflict(name: str, query: Any, body: Any) -> None:
    with pytest.raises(RepeatedField, match=name):
        merge_parameters(Parameters.model_validate({name: query}), {name: body})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", "a"),
        ("top_k", 1.5),
        ("top_k", "9" * 5000),
        ("threshold", "NaN"),
        ("threshold", "inf"),
        ("threshold", -0.1),
        ("threshold", 2),
        ("threshold", "sometimes"),
        ("threshold", [0.5]),
        ("include", "cat"),
        ("include", [1]),
        ("include", [""]),
        ("include", ["x" * 201]),
        ("include", ["\ud800"]),
        ("exclude", [["cat"]]),
        ("explain", "maybe"),
        ("explain", 2),
        ("explain", ["true"]),
        ("surprise", 1),
    ],
)
def test_bad_value_is_named_once(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameters) as caught:
        merge_parameters(Parameters(), {name: value})
    # In a list a value is named with its place.
    assert [wrong.name.partition(".")[0] for wrong in caught.value.values] == [name]
    assert [wrong.where for wrong in caught.value.values] == ["body"]


@pytest.mark.parametrize("threshold", [0, 1, "0", "1", "0.25", "calibrated"])
def test_ends_of_the_threshold_range_are_allowed(threshold: Any) -> None:
    assert merge_parameters(Parameters(), {"threshold": threshold}).threshold is not None


@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, "map"), ("true", "map"), (False, None), ("false", None), ("overlay", "overlay")],
)
def test_explain_is_a_switch_or_asks_for_overlays(given: Any, meant: str | None) -> None:
    assert merge_parameters(Parameters(), {"explain": given}).explain == meant


def read(text: str) -> Parameters:
    return read_parameters(Request({"type": "http", "query_string": text.encode()}))


@pytest.mark.parametrize("length", [1, 200], ids=["usual", "long"])
def test_query_string_is_read_the_same_every_time(length: int) -> None:
    expected = Parameters(top_k=3, include=["cat", "d" * length])
    for _ in range(3):
        assert read(f"top_k=3&include=cat&include={'d' * length}") == expected
    assert read("") == Parameters()


def test_bad_query_string_is_refused_every_time() -> None:
    for _ in range(3):
        with pytest.raises(InvalidParameters, match="top_k"):
            read("top_k=0")
        with pytest.raises(RepeatedField, match="top_k"):
            read("top_k=1&top_k=2")
    assert read("top_k=1") == Parameters(top_k=1)


@pytest.mark.parametrize("name", sorted(LIST_PARAMETERS))
def test_list_ends_at_its_first_error_and_at_its_limit(name: str) -> None:
    for value in ([1] * 200_000, ["a"] * 200_000):
        with pytest.raises(InvalidParameters) as caught:
            merge_parameters(Parameters(), {name: value})
        assert len(caught.value.values) == 1


def test_query_string_of_many_names_is_read_in_one_pass() -> None:
    names = [f"name{number}" for number in range(30_000)]
    with pytest.raises(InvalidParameters) as caught:
        read("&".join(f"{name}=1" for name in names))
    assert [value.name for value in caught.value.values] == names[:10]


@pytest.mark.anyio
async def test_too_many_candidate_labels_are_refused_unseen() -> None:
    with pytest.raises(InvalidLabelSet, match="at most 3"):
        await merge_aside(Parameters(), {"candidate_labels": [1, 2, 3, 4]}, 3)
    question = await merge_aside(Parameters(), {"candidate_labels": ["a", "b", "c"]}, 3)
    assert question.candidate_labels == ("a", "b", "c")


@pytest.mark.parametrize(("length", "in_loop"), [(10, True), (200, False)])
@pytest.mark.anyio
async def test_event_loop_goes_on_while_long_candidate_labels_are_checked(
    length: int, *, in_loop: bool
) -> None:
    others = asyncio.Event()
    asyncio.get_running_loop().call_soon(others.set)
    names = [str(number).ljust(length, "x") for number in range(50)]

    question = await merge_aside(Parameters(top_k=1), {"candidate_labels": names}, 50)

    assert question == Question(top_k=1, candidate_labels=tuple(names))
    assert others.is_set() is not in_loop


@pytest.mark.parametrize("value", ["cat", 5, [5], [["cat"]]])
@pytest.mark.anyio
async def test_candidate_labels_that_are_no_texts_are_bad_values(value: Any) -> None:
    with pytest.raises(InvalidParameters, match="candidate_labels"):
        await merge_aside(Parameters(), {"candidate_labels": value}, 3)
    question = await merge_aside(Parameters(), {"candidate_labels": ["cat"]}, 3)
    assert question.candidate_labels == ("cat",)
