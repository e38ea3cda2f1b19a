"""Parts of the OpenAPI document that FastAPI cannot see: bodies, parameters and errors."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from service.errors import list_coded
from service.http.requests.body import BYTES, JSON, MULTIPART, RAW_IMAGE
from service.http.requests.parameters import LIST_PARAMETERS
from service.http.requests.uploads import MAX_EXAMPLES, UploadShape
from service.http.responses.problems import PROBLEM_JSON, ErrorType, list_headers
from service.question import Question

_TEXT = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}
_ERROR_HEADERS = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": _TEXT},
}
_PROBLEM = {"content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_TAG = {"ETag": {"description": "The set's version, in quotes.", "schema": _TEXT}}
_PLACE = {"Location": {"description": "The set's path, below the root path.", "schema": _TEXT}}
TAG = {"headers": _TAG}
"""For FastAPI's `responses`: an answer with a label set."""


def document_write(
    answer: type[BaseModel], meaning: str = "Successful Response"
) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for a write of a label set, which makes a missing one."""
    created = {"description": "There was no such set.", "headers": _TAG | _PLACE}
    return {
        HTTPStatus.OK.value: {"model": answer, "description": meaning, **TAG},
        HTTPStatus.CREATED.value: {"model": answer, **created},
    }


class DocumentedApp(FastAPI):
    """FastAPI, whose document has docstrings as summaries, and no 422 but ours."""

    def openapi(self) -> dict[str, Any]:  # noqa: D102
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    summary, _, description = operation["description"].partition("\n\n")
                    operation |= {"summary": summary, "description": description}
                    if "HTTPValidationError" in str(operation["responses"].get("422")):
                        del operation["responses"]["422"]
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        assert self.openapi_schema is not None
        return self.openapi_schema


def document_problems(
    *errors: ErrorType, members: Sequence[str] = (), find_status: Callable[[int], int] = int
) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` of a route; `ImageError` is all errors of it.

    Other programs have JSON with `members`; `find_status` returns their status for ours.
    """
    other = {"content": {JSON: {"schema": {"type": "object", "required": [*members]}}}}
    body = other if members else _PROBLEM
    groups: dict[int, list[ErrorType]] = defaultdict(list)
    coded = ((base,) if "code" in vars(base) else list_coded(base) for base in errors)
    for error in dict.fromkeys(chain.from_iterable(coded)):
        groups[find_status(error.status)].append(error)
    answers: dict[int | str, dict[str, Any]] = {}
    for status, group in sorted(groups.items()):
        text = "\n".join(f"- `{error.code}`: {error.title}" for error in group)
        sent = {name for error in group for name in list_headers(error)}
        headers = {name: header for name, header in _ERROR_HEADERS.items() if name in sent}
        answers[status] = {"description": text, "headers": headers, **body}
    return answers


def document_predict(shape: UploadShape, model: type[BaseModel] = Question) -> dict[str, Any]:
    """Returns FastAPI's `openapi_extra`: images and fields, in the query too if of `Question`."""
    fields = model.model_json_schema()["properties"]
    required = () if "texts" in fields else (shape.image_field,)

    def describe(image: dict[str, Any]) -> dict[str, Any]:
        if shape.batch:
            image = {"type": "array", "minItems": 1, "maxItems": shape.max_images, "items": image}
        return _document_object(required, {shape.image_field: image, **fields})

    binary = {**_BINARY, "description": "The image's bytes."}
    base64 = {**_TEXT, "contentEncoding": "base64", "description": "Base64, or a data URL."}
    # Without `explode`, `/docs` sends a list as one field, its values joined by commas.
    lists = sorted(LIST_PARAMETERS & fields.keys())
    encoding = {name: {"style": "form", "explode": True} for name in lists}
    content = {
        MULTIPART: {"schema": describe(binary), "encoding": encoding},
        JSON: {"schema": describe(base64)},
        RAW_IMAGE: {"schema": binary},
        BYTES: {"schema": binary},
        "text/plain": {"schema": base64},
    }
    if not shape.batch:
        json = content[JSON]["schema"]
        meaning = "Instead of the image, if the service is set to fetch images."
        url = {**_TEXT, "format": "uri", "maxLength": 2000, "description": meaning}
        json["properties"]["url"] = url
        json["oneOf"] = [{"required": json.pop("required")}, {"required": ["url"]}]
    parameters = [
        _document_parameter(name, "query", schema, schema["description"])
        for name, schema in fields.items()
        if model is Question
    ]
    return {"parameters": parameters, **_document_body(content)}


def document_examples(*required: str) -> dict[str, Any]:
    """Returns FastAPI's `openapi_extra` with the form of `read_examples`."""
    photos = {"type": "array", "maxItems": MAX_EXAMPLES, "items": _BINARY}
    fields = {
        "positive": {**photos, "description": "Photos that show the label."},
        "negative": {**photos, "description": "Photos that do not show it."},
    }
    return _document_body({MULTIPART: {"schema": _document_object(required, fields)}})


def document_conditions(**meanings: str) -> dict[str, Any]:
    """Returns FastAPI's `openapi_extra` with conditional headers: name -> meaning, in Markdown."""
    parameters = [
        _document_parameter(key.replace("_", "-").title(), "header", _TEXT, meaning)
        for key, meaning in meanings.items()
    ]
    return {"parameters": parameters}


def document_json(
    model: type[BaseModel], *, optional: str | None = None, example: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns FastAPI's `openapi_extra` with a JSON body; the field `optional` is in the path."""
    schema = model.model_json_schema()
    if optional is not None:
        schema["required"].remove(optional)
    schema = _inline(schema, schema.pop("$defs", {}))
    return _document_body({JSON: {"schema": schema, **({"example": example} if example else {})}})


def document_tensors(model: type[BaseModel], header: str) -> dict[str, Any]:
    """Returns FastAPI's `openapi_extra`: JSON, its length in `header`, then bytes."""
    extra = document_json(model)
    body = {**_BINARY, "description": "The JSON, followed by the bytes of the tensors."}
    extra["requestBody"]["content"][BYTES] = {"schema": body}
    length = "How many bytes of the body are JSON; all of them without this header."
    extra["parameters"] = [_document_parameter(header, "header", {"type": "integer"}, length)]
    return extra


def document_answer(
    description: str, *kinds: str, headers: Mapping[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Returns FastAPI's `responses` for a 200 without model; texts are Markdown."""
    content = {kind: {"schema": {"type": "object" if kind == JSON else "string"}} for kind in kinds}
    answer = {"description": description, "content": content, "headers": headers or {}}
    return {HTTPStatus.OK.value: answer}


def _document_body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def _document_object(required: Sequence[str], properties: dict[str, Any]) -> dict[str, Any]:
    least = {"required": [*required]} if required else {"minProperties": 1}
    return {"type": "object", **least, "additionalProperties": False, "properties": properties}


def _document_parameter(name: str, part: str, schema: Any, meaning: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"name": name, "in": part, "schema": schema, "description": meaning}


def _inline(value: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    # References are inlined: only FastAPI adds components to the document.
    if isinstance(value, dict):
        if "$ref" in value:
            return _inline(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inline(part, definitions) for key, part in value.items()}
    if isinstance(value, list):
        return [_inline(part, definitions) for part in value]
    return value
