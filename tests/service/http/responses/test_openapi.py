"""The OpenAPI document agrees with the routes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from service.http.app import create_app
from service.http.dialects.open_inference.request import HEADER_LENGTH
from service.http.requests.parameters import LIST_PARAMETERS
from service.labels.definition import LabelSetRecord
from service.pipeline.served import ServedPipeline
from service.question import Question
from service.settings import Settings
from tests.support.serving import list_errors

SHAPES = {"/v1": {"error"}, "/v2": {"error"}, "/api": {"id", "code", "error"}}
SHAPES["/tagger"] = {"error", "detail", "body", "errors"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(ServedPipeline(Settings())).openapi()


@pytest.fixture(scope="module")
def paths(document: dict[str, Any]) -> dict[str, Any]:
    operations: dict[str, Any] = document["paths"]
    return operations


def list_answers(paths: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields path, status and description of every documented answer."""
    for path, operations in paths.items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                yield path, status, answer


def test_parameters_are_documented_in_query_and_body(paths: dict[str, Any]) -> None:
    for path, image in (("/predict", "image"), ("/predict/batch", "images")):
        post = paths[path]["post"]
        assert {parameter["name"] for parameter in post["parameters"]} == set(Question.model_fields)
        for kind in ("multipart/form-data", "application/json"):
            content = post["requestBody"]["content"][kind]
            properties = content["schema"]["properties"]
            if kind == "multipart/form-data":  # else `/docs` sends a list as one field
                way = {"style": "form", "explode": True}
                assert content["encoding"] == dict.fromkeys(sorted(LIST_PARAMETERS), way)
            url = {"url"} if (path, kind) == ("/predict", "application/json") else set()
            assert set(properties) == {image, *url, *Question.model_fields}


def test_example_of_a_label_set_is_one(paths: dict[str, Any]) -> None:
    posted = paths["/labels"]["post"]["requestBody"]["content"]["application/json"]["example"]
    put = paths["/labels/{name}"]["put"]["requestBody"]["content"]["application/json"]["example"]
    assert LabelSetRecord.model_validate(posted).labels == (
        LabelSetRecord.model_validate({"name": "any", **put}).labels
    )


def test_every_error_answer_is_a_problem_with_its_codes(paths: dict[str, Any]) -> None:
    seen, known = set(), {error.code: error for error in list_errors()}
    for path, status, response in list_answers(paths):
        if status >= "400" and not path.startswith((*SHAPES,)):
            seen.add(status)
            content = response["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            codes = re.findall(r"^- `(\w+)`: ", response["description"], re.MULTILINE)
            assert {known[code].status for code in codes} == {int(status)}
            assert len(set(codes)) == len(codes)
    assert seen == {
        *("400", "401", "403", "404", "408", "409", "412", "413", "415", "422", "429"),
        *("500", "503", "504", "507"),
    }


def test_every_error_of_another_protocol_has_its_shape(paths: dict[str, Any]) -> None:
    infer = paths["/v2/models/{name}/infer"]["post"]["responses"]
    expected = {*("200", "400", "401", "403", "404", "408", "413", "429", "500", "503", "504")}
    assert set(infer) == expected
    for path, status, response in list_answers(paths):
        for shape in (SHAPES[each] for each in SHAPES if path.startswith(each) and status >= "400"):
            schema = response["content"]["application/json"]["schema"]
            assert set(schema["required"]) == shape


def test_answers_that_ask_for_a_retry_or_a_key_document_their_header(paths: dict[str, Any]) -> None:
    expected = {"429": "Retry-After", "503": "Retry-After", "401": "WWW-Authenticate"}
    for _, status, response in list_answers(paths):
        if status in expected:
            assert set(response["headers"]) == {expected[status]}


@pytest.mark.parametrize("version", ["", "/versions/{version}"])
def test_binary_tensors_are_documented_in_both_directions(
    paths: dict[str, Any], version: str
) -> None:
    post = paths[f"/v2/models/{{name}}{version}/infer"]["post"]
    kinds = {"application/json", "application/octet-stream"}
    assert set(post["requestBody"]["content"]) == set(post["responses"]["200"]["content"]) == kinds
    headers = [parameter["name"] for parameter in post["parameters"] if parameter["in"] == "header"]
    assert headers == list(post["responses"]["200"]["headers"]) == [HEADER_LENGTH]
    # Whatever the body is said to be, it is read.
    assert "Content-Type" not in post["responses"]["400"]["description"]
