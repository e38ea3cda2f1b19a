"""Tests of the parameters: query string and body are checked alike and must not contradict."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request

from service.errors import InvalidLabelSet, InvalidParameters, RepeatedField
from service.http.requests.parameters import (
    LIST_PARAMETERS,
    SINGLE_PARAMETERS,
    add_fields,
    read_parameters,
)
from service.pipeline.served import ServedPipeline
from service.question import Question
from service.settings import Settings
from tests.support.serving import assert_problem

pytestmark = pytest.mark.anyio

BUNDLE, SETTINGS = "open_bundle", dict[str, Any]()


def read(text: str) -> Question:
    return read_parameters(Request({"type": "http", "query_string": text.encode()}))


def serve(max_candidates: int = 10) -> ServedPipeline:
    return ServedPipeline(Settings(max_candidate_labels=max_candidates))


def test_every_parameter_is_either_single_or_a_list() -> None:
    assert sorted(SINGLE_PARAMETERS) == [
        *("embedding", "explain", "lang", "min_labels", "min_version", "parents", "threshold"),
        "top_k",
    ]
    for name, field in Question.model_fields.items():
        assert ("list" in str(field.annotation)) is (name in LIST_PARAMETERS)


@pytest.mark.parametrize(
    ("query", "fields", "expected"),
    [
        ({"top_k": 3}, {}, {"top_k": 3}),
        ({}, {}, {}),
        ({"top_k": 3}, {"top_k": "3"}, {"top_k": 3}),
        ({"top_k": 3}, {"top_k": None, "include": None}, {"top_k": 3}),
        (
            {"top_k": 3},
            {"threshold": "0.5", "include": ["cat"]},
            {"top_k": 3, "threshold": 0.5, "include": ["cat"]},
        ),
    ],
)
async def test_parameters_of_query_and_body_are_merged(
    query: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert await add_fields(Question(**query), fields, serve()) == Question(**expected)


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
async def test_different_values_in_query_and_body_conflict(
    name: str, query: Any, body: Any
) -> None:
    with pytest.raises(RepeatedField, match=name):
        await add_fields(Question.model_validate({name: query}), {name: body}, serve())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_k", 0), ("include", "cat"), ("include", [1] * 200_000), ("surprise", 1)),
        *(("candidate_labels", value) for value in ("cat", 5, [5], [["cat"]])),
    ],
)
async def test_bad_field_is_named_once_with_its_place(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameters) as caught:
        await add_fields(Question(), {name: value}, serve())
    # The name of an item of a list ends with its index.
    assert [wrong.name.partition(".")[0] for wrong in caught.value.values] == [name]
    assert [wrong.where for wrong in caught.value.values] == ["body"]


@pytest.mark.parametrize("length", [1, 200], ids=["cached", "long"])
def test_query_string_is_read_the_same_every_time(length: int) -> None:
    expected = Question(top_k=3, include=["cat", "d" * length])
    for _ in range(3):
        assert read(f"top_k=3&include=cat&include={'d' * length}") == expected
    assert read("") == Question()


def test_bad_query_string_is_refused_every_time() -> None:
    for _ in range(3):
        with pytest.raises(InvalidParameters, match="top_k"):
            read("top_k=0")
        with pytest.raises(RepeatedField, match="top_k"):
            read("top_k=1&top_k=2")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["cat,dog,bus"], ["cat", "dog", "bus"]),
        ([" cat , dog,,bus, "], ["cat", "dog", "bus"]),
        (["cat"], ["cat"]),
        (["a, b", "c"], ["a, b", "c"]),
        (["a, b", ""], ["a, b"]),
        (["", ""], None),
        ([""], None),
    ],
)
@pytest.mark.parametrize("name", ["include", "candidate_labels"])
def test_commas_separate_the_names_of_a_list_that_is_given_once(
    name: str, texts: list[str], names: list[str] | None
) -> None:
    query = urlencode({name: texts}, doseq=True)
    assert read(query) == Question.model_validate({name: names})


@pytest.mark.parametrize("query", ["candidate_labels=,", "candidate_labels=caf%E9"])
def test_only_commas_and_bytes_that_are_not_utf8_are_refused(query: str) -> None:
    with pytest.raises(InvalidParameters, match="candidate_labels"):
        read(query)


@pytest.mark.parametrize("raw", ["caf\u00e9".encode(), b"caf%C3%A9"])
def test_query_string_may_have_the_bytes_of_utf8(raw: bytes) -> None:
    scope = {"type": "http", "query_string": b"candidate_labels=" + raw}
    assert read_parameters(Request(scope)).candidate_labels == ["caf\u00e9"]


def test_query_string_of_many_names_is_read_in_one_pass() -> None:
    names = [f"name{number}" for number in range(20_000)]
    with pytest.raises(InvalidParameters) as caught:
        read("&".join(f"{name}=1" for name in names))
    assert [value.name for value in caught.value.values] == names[:10]


async def test_too_many_candidate_labels_are_refused_before_each_is_checked() -> None:
    with pytest.raises(InvalidLabelSet, match="at most 3"):
        await add_fields(Question(), {"candidate_labels": [1, 2, 3, 4]}, serve(3))
    question = await add_fields(Question(), {"candidate_labels": ["a", "b", "c"]}, serve(3))
    assert question.candidate_labels == ["a", "b", "c"]


@pytest.mark.parametrize(("length", "in_loop"), [(10, True), (200, False)])
async def test_event_loop_runs_while_long_candidate_labels_are_checked(
    length: int, *, in_loop: bool
) -> None:
    others = asyncio.Event()
    asyncio.get_running_loop().call_soon(others.set)
    names = [str(number).ljust(length, "x") for number in range(50)]
    question = await add_fields(Question(top_k=1), {"candidate_labels": names}, serve(50))
    assert question == Question(top_k=1, candidate_labels=names)
    assert others.is_set() is not in_loop


@pytest.mark.parametrize(
    ("method", "path", "close"),
    [
        ("GET", "/labels?label_st=a", ""),
        ("POST", "/labels?name=a", ""),
        ("GET", "/labels/everyday?version=1", ""),
        ("PUT", "/labels/odd?if_version=1", ""),
        ("PATCH", "/labels/odd?label=a", ""),
        ("DELETE", "/labels/odd?nmae=a", ""),
        ("POST", "/labels/odd/calibrate?label=a&precision_taget=1", "'precision_target'"),
        ("GET", "/info?verbose", ""),
    ],
)
def test_unknown_name_in_the_query_is_refused_and_changes_nothing(
    client: TestClient, method: str, path: str, close: str
) -> None:
    client.put("/labels/odd", json={"labels": ["yak"]}).raise_for_status()
    (value,) = assert_problem(client.request(method, path), 422, "invalid_parameters")["errors"]
    assert value["name"] == path.partition("?")[2].split("&")[-1].partition("=")[0]
    assert "unknown" in value["reason"]
    assert close in value["reason"]
    assert client.get("/labels/odd").status_code == 200
