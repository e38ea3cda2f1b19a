"""JSON bodies: bytes -> an object whose members are given once, while others are answered.

In: a body that is JSON, and how much may be in it. Out: its object. Next: `uploads.py` and
`open_inference/request.py`, which know what the members mean.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from service.http.request_errors import MalformedBody

# No object that is read here has as many; each one that is unknown costs an error of its own.
_MOST_MEMBERS = 100
MOST_BRACKETS = 500_000
"""That open in the JSON of a body, far more than its labels need. Lists and objects are what takes
longest to parse: 20 MB of nothing else take seconds, in which no other thread runs."""
_QUICK_BYTES = 65536


async def parse_aside(body: bytes, most_brackets: int = MOST_BRACKETS) -> dict[str, Any]:
    """Returns what `parse_json` does, and has a thread do what takes longer.

    Raises:
        MalformedBody: `parse_json` says why.
    """
    if len(body) <= _QUICK_BYTES:
        return parse_json(body, most_brackets)
    # Parsing megabytes takes a while, in which the event loop has to answer others.
    return await asyncio.to_thread(parse_json, body, most_brackets)


def parse_json(body: bytes, most_brackets: int = MOST_BRACKETS) -> dict[str, Any]:
    """Returns a JSON object; nothing in it is given twice.

    Args:
        body: all of it.
        most_brackets: how many `[` and `{` may stand in it, those of its texts included.

    Raises:
        MalformedBody: this is no JSON, or no object, or something in it is given twice, or it has
            too many brackets.
    """
    if body.count(b"[") + body.count(b"{") > most_brackets:
        raise MalformedBody(f"The JSON has more than {most_brackets} opening brackets")
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise MalformedBody("The body is not valid JSON") from error
    if not isinstance(value, dict):
        raise MalformedBody("The JSON body is not an object")
    return value


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MOST_MEMBERS:
        raise MalformedBody("An object of the body has too many members")
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedBody("An object of the body has a member twice")
    for name in members:
        name.encode()  # a lone surrogate has no UTF-8 and raises a ValueError here
    return members


def _refuse_constant(_name: str) -> float:
    raise ValueError("NaN and infinities are not JSON")
