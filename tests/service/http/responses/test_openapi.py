"""The OpenAPI document agrees with the routes."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.http.app import create_app
from service.http.open_inference.request import HEADER_LENGTH
from service.http.requests.parameters import LIST_PARAMETERS
from service.labels.definition import LabelSetRecord
from service.pipeline.host import PipelineHost
from service.question import Question
from service.settings import Settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(PipelineHost(Settings())).openapi()


@pytest.fixture(scope="module")
def paths(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"]
    return found


def test_predictions_come_first_and_tags_are_described_in_their_order(
    document: dict[str, Any], paths: dict[str, Any]
) -> None:
    used = [tag for path in paths.values() for op in path.values() for tag in op["tags"]]
    assert list(dict.fromkeys(used)) == [tag["name"] for tag in document["tags"]]
    assert used[0] == "predict"


def test_summaries_are_written_and_tell_the_routes_of_a_tag_apart(paths: dict[str, Any]) -> None:
    operations = [(method, op) for path in paths.values() for method, op in path.items()]
    for _, operation in operations:
        # FastAPI's own summary is the function's name, such as "Predict Batch".
        assert operation["summary"] != operation["summary"].title()
    # With a version and without, the routes of a model are the same.
    kinds = {(op["tags"][0], method, op["summary"]) for method, op in operations}
    versioned = [path for path in paths if "{version}" in path]
    assert len(kinds) == len(operations) - len(versioned)


def list_answers(paths: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields path, status and description of every documented answer."""
    for path, operations in paths.items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                yield path, status, answer


def test_predict_takes_three_kinds_of_body_and_batch_two(paths: dict[str, Any]) -> None:
    single = paths["/predict"]["post"]["requestBody"]["content"]
    batch = paths["/predict/batch"]["post"]["requestBody"]["content"]
    assert set(single) == {"multipart/form-data", "application/json", "image/*"}
    assert set(batch) == {"multipart/form-data", "application/json"}
    assert batch["application/json"]["schema"]["properties"]["images"]["maxItems"] == 16


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


def test_every_error_answer_is_a_problem_with_examples(paths: dict[str, Any]) -> None:
    seen = set()
    for path, status, response in list_answers(paths):
        if status >= "400" and not path.startswith("/v2"):
            seen.add(status)
            content = response["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            for example in content["examples"].values():
                assert example["value"]["status"] == int(status)
    assert seen == {
        *("400", "401", "403", "404", "408", "409", "412", "413", "415", "422", "429"),
        *("500", "503", "504", "507"),
    }


def test_every_error_of_the_open_inference_protocol_has_its_shape(paths: dict[str, Any]) -> None:
    infer = paths["/v2/models/{name}/infer"]["post"]["responses"]
    expected = {*("200", "400", "401", "403", "404", "408", "413", "429", "500", "503", "504")}
    assert set(infer) == expected
    for path, status, response in list_answers(paths):
        if status >= "400" and path.startswith("/v2"):
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}


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


def test_routes_of_a_label_set_document_versions_and_conditions(paths: dict[str, Any]) -> None:
    routes = paths["/labels/{name}"]
    conditions = {
        method: {p["name"] for p in operation["parameters"] if p["in"] == "header"}
        for method, operation in routes.items()
    }
    assert conditions == {
        "get": {"If-None-Match"},
        "put": {"If-Match", "If-None-Match"},
        "patch": {"If-Match"},
        "delete": {"If-Match"},
    }
    created = (paths["/labels"]["post"]["responses"], routes["put"]["responses"])
    for responses in created:
        assert set(responses["201"]["headers"]) == {"ETag", "Location"}
        assert set(responses["200"]["headers"]) == {"ETag"}
    for status in ("200", "304"):
        assert set(routes["get"]["responses"][status]["headers"]) == {"ETag"}
