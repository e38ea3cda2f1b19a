"""Writes the API reference: the OpenAPI document as one page of Markdown.

python -m tests.project.api_reference > docs/api.md
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from service.http.app import create_app
from service.pipeline.served import ServedPipeline
from service.settings import Settings

JSON = dict[str, Any]
_HEAD = """<!-- Written by `make reference` from the service's OpenAPI document; do not edit. -->

# API

A running service shows the same at `/docs`, with a form to try each route, and has the OpenAPI
document at `/openapi.json`.

- Every answer has the header `X-Request-ID`, which is also in the log. It is the request's own, or
  a new one.
- After an error with the header `Retry-After`, repeat the request after that many seconds.
"""


def read_openapi() -> JSON:
    """The OpenAPI document of an app with default settings."""
    document: JSON = create_app(ServedPipeline(Settings())).openapi()
    return document


def write_reference(document: JSON) -> str:
    """Returns the page."""
    routes = (
        _write_route(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    shapes = (
        _write_shape(name, schema)
        for name, schema in sorted(document["components"]["schemas"].items())
        if "properties" in schema
    )
    return "\n".join([_HEAD, *routes, "## Schemas\n", *shapes]).rstrip() + "\n"


def _write_route(method: str, path: str, operation: JSON) -> str:
    about = f"{operation['summary']}\n\n{operation['description']}".strip()
    lines = [f"## {method.upper()} {path}\n", f"{about}\n"]
    rows = [
        (f"`{p['name']}`", p["in"], _name_type(p["schema"]), p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    if rows:
        lines += [*write_table(("parameter", "in", "type", "meaning"), rows), ""]
    body = operation.get("requestBody")
    if body:
        lines += ["Body:\n", *(f"- {text}" for text in _list_bodies(body)), ""]
    good = {code: r for code, r in operation["responses"].items() if code < "400"}
    lines += ["Answers:\n", *(f"- {code}: {_tell_answer(r)}" for code, r in good.items()), ""]
    problems = list(_list_problems(operation["responses"]))
    if problems:
        lines += [*write_table(("status", "code", "error"), problems), ""]
    return "\n".join(lines)


def _list_bodies(body: JSON) -> Iterator[str]:
    for kind, content in body["content"].items():
        fields = content["schema"].get("properties", {})
        required = content["schema"].get("required", ())
        names = [f"`{name}`{' (required)' if name in required else ''}" for name in fields]
        yield f"`{kind}`: {', '.join(names) or content['schema']['description']}"


def _tell_answer(response: JSON) -> str:
    contents = response.get("content", {})
    shapes = [
        _name_type(content["schema"]) if kind == "application/json" else f"`{kind}`"
        for kind, content in contents.items()
        if content["schema"]
    ]
    shape = " or ".join(shapes) or "no body"
    headers = "".join(f", `{name}`" for name in response.get("headers", ()))
    return f"{shape}{headers}. {response['description']}".removesuffix(". Successful Response")


def _list_problems(responses: JSON) -> Iterator[tuple[str, ...]]:
    for status, response in sorted(responses.items()):
        if status >= "400":
            for line in response["description"].splitlines():
                code, _, title = line.removeprefix("- ").partition(": ")
                yield status, code, title


def _write_shape(name: str, schema: JSON) -> str:
    required = schema.get("required", ())
    rows = [
        (
            f"`{field}`",
            _name_type(value) + ("" if field in required else ", optional"),
            value.get("description", ""),
        )
        for field, value in schema["properties"].items()
    ]
    about = schema.get("description", "").split("\n\nAttributes:")[0]
    return "\n".join([f"### {name}\n", f"{about}\n", *write_table(_SHAPE_HEAD, rows), ""])


_SHAPE_HEAD = ("field", "type", "meaning")


def _name_type(schema: JSON) -> str:
    """Returns a type in words; other schemas by name."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_name_type(option) for option in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{str(value).lower()}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_name_type(schema.get('items', {}))}"
    if "format" in schema or "contentEncoding" in schema:
        return f"{schema['type']} ({schema.get('format') or schema['contentEncoding']})"
    return str(schema.get("type", "any")).replace("object", "JSON object")


def write_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yields the lines of a table; line breaks become spaces."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(write_reference(read_openapi()))
