"""JSON bodies; `pydantic_core.from_json` takes repeated members and blocks all threads."""

import json
from typing import Any

from starlette.requests import Request

from service.errors import MalformedBody, UnsupportedMediaType
from service.http.requests.body import JSON, Body, read_media_type
from service.pipeline.served import ServedPipeline

MAX_PARTS = 500_000
"""Most lists, objects and texts of a body: 20 MB of these stop all threads for seconds. Numbers are
parsed by Python code, between whose calls threads switch."""
# More than any object of ours: each unknown member costs an error message.
_MAX_MEMBERS = 100
_QUICK_BYTES = 65536


async def read_json_object(
    request: Request, served: ServedPipeline, labels: int = 0, label_numbers: int = 0
) -> dict[str, Any]:
    """Reads a body of JSON with up to `labels` labels of so many numbers; raises as `read_json`."""
    body = Body(request, served.settings)
    if read_media_type(request.headers.get("content-type", "")) != JSON:
        raise UnsupportedMediaType(JSON)
    # A label may be an object of three members, one of them a text or a list of numbers.
    return await read_json(body, served, MAX_PARTS + 6 * labels, label_numbers * labels)


async def read_json(
    body: Body, served: ServedPipeline, max_parts: int = MAX_PARTS, max_numbers: int = 0
) -> dict[str, Any]:
    """Calls `parse_json`, in a side thread if the body is long. Raises as both, and as `Body`."""
    text = await body.read()
    if len(text) <= _QUICK_BYTES:
        return parse_json(text, max_parts, max_numbers)
    return await served.run_in_side_thread(parse_json, text, max_parts, max_numbers)


def parse_json(body: bytes, max_parts: int = MAX_PARTS, max_numbers: int = 0) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises MalformedBody if there is none.

    At most `max_parts` lists, objects and texts, and `max_numbers` other values.
    """
    # Brackets and quotes inside texts count too: no valid body has so many.
    if body.count(b"[") + body.count(b"{") + body.count(b'"') // 2 > max_parts:
        raise MalformedBody(f"The JSON must have at most {max_parts} lists, objects and texts")
    if body.count(b",") > max_parts + max_numbers:
        raise MalformedBody(f"The JSON must have at most {max_parts + max_numbers} values")
    encoding = json.detect_encoding(body).upper()
    if not encoding.startswith("UTF-8"):
        raise MalformedBody(f"The JSON must be UTF-8; it is {encoding}")
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
            # Python code, between whose calls threads switch.
            parse_float=lambda digits: float(digits),
            parse_int=lambda digits: int(digits),
        )
    except UnicodeDecodeError as error:
        sent = f"byte 0x{body[error.start]:02X} at {error.start}"
        raise MalformedBody(f"The JSON must be UTF-8; {sent} may be Latin-1") from error
    except (ValueError, RecursionError) as error:
        raise MalformedBody("The body is not valid JSON") from error
    if not isinstance(value, dict):
        raise MalformedBody("The JSON body must be an object")
    return value


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise MalformedBody(f"An object of the body must have at most {_MAX_MEMBERS} members")
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedBody("An object of the body has a member twice")
    for name in members:
        name.encode()  # raises a ValueError for a lone surrogate
    return members


def _refuse_constant(_name: str) -> float:
    raise ValueError("NaN and infinities are not JSON")
