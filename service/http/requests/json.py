"""JSON bodies: bytes -> an object whose members are given once, while others are answered.

In: a body that is JSON, and how much may be in it. Out: its object. Next: `uploads.py` and
`open_inference/request.py`, which know what the members mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from service.errors import MalformedBody

# No object that is read here has as many; each one that is unknown costs an error of its own.
_MOST_MEMBERS = 100
MOST_PARTS = 500_000
"""Lists, objects and texts in the JSON of a body, far more than its labels need. While they are
parsed no other thread runs, and 20 MB of nothing else take seconds."""
_QUICK_BYTES = 65536


def _read_int(digits: str) -> int:
    return int(digits)


def _read_float(digits: str) -> float:
    return float(digits)


async def parse_aside(
    body: bytes, most_parts: int = MOST_PARTS, most_numbers: int = 0
) -> dict[str, Any]:
    """Returns what `parse_json` does, and has a thread do what takes longer.

    Raises:
        MalformedBody: `parse_json` says why.
    """
    if len(body) <= _QUICK_BYTES:
        return parse_json(body, most_parts, most_numbers)
    # Parsing megabytes takes a while, in which the event loop has to answer others.
    return await asyncio.to_thread(parse_json, body, most_parts, most_numbers)


def parse_json(
    body: bytes,
    most_parts: int = MOST_PARTS,
    most_numbers: int = 0,
    read_int: Callable[[str], int] = _read_int,
) -> dict[str, Any]:
    """Returns a JSON object; nothing in it is given twice.

    Args:
        body: all of it.
        most_parts: lists, objects and texts that it may hold.
        most_numbers: values that it may hold beside so many.
        read_int: turns the digits of a whole number into it. Python code, as by default, lets
            other threads run between two numbers; what is none takes less time.

    Raises:
        MalformedBody: this is no JSON, or no object, or something in it is given twice, or it
            holds too much.
    """
    _check_marks(body, most_parts, most_numbers)
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
            parse_float=_read_float,
            parse_int=read_int,
        )
    except (ValueError, RecursionError) as error:
        raise MalformedBody("The body is not valid JSON") from error
    if not isinstance(value, dict):
        raise MalformedBody("The JSON body is not an object")
    return value


def _check_marks(body: bytes, most_parts: int, most_numbers: int) -> None:
    """Bounds what is in a body by the marks around it, those in texts included."""
    if body.count(b"[") + body.count(b"{") + body.count(b'"') // 2 > most_parts:
        raise MalformedBody(f"The JSON has more than {most_parts} lists, objects and texts")
    if body.count(b",") > most_parts + most_numbers:
        raise MalformedBody(f"The JSON has more than {most_parts + most_numbers} values")


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
