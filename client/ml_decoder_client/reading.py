"""Reads parsed JSON into frozen dataclasses by their annotations; unknown fields are ignored."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ResultT = TypeVar("ResultT")

_JSON_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}


def read_json(kind: type[ResultT], value: object) -> ResultT:
    """Returns a `kind`, a dataclass; raises ValueError with the place of the first wrong value.

    Fields are dataclasses, lists, objects, texts, numbers and truth values; None if optional.
    """
    found: ResultT = _read(kind, value, "")
    return found


def _read(kind: Any, value: Any, place: str) -> Any:  # noqa: ANN401 - any annotation, any JSON
    if kind is Any:
        return value
    if NoneType in get_args(kind):
        if value is None:
            return None
        (kind,) = set(get_args(kind)) - {NoneType}
    if is_dataclass(kind) and isinstance(kind, type):
        _check(isinstance(value, dict), place, "an object")
        return kind(**_read_fields(kind, value, place))
    shape = get_origin(kind) or kind
    if shape is list:
        _check(isinstance(value, list), place, "a list")
        (item,) = get_args(kind)
        return [_read(item, each, f"{place}.{i}") for i, each in enumerate(value)]
    if shape in (int, float):
        # In JSON 1.0 may be written as 1; Python's `bool` is an `int`.
        _check(isinstance(value, int | shape) and not isinstance(value, bool), place, "a number")
        return value
    _check(isinstance(value, shape), place, _JSON_NAMES[shape])
    return value


def _read_fields(kind: Any, value: dict[str, Any], place: str) -> dict[str, Any]:  # noqa: ANN401
    found = {}
    for name, annotation, is_required in _list_fields(kind):
        at = f"{place}.{name}" if place else name
        if name in value:
            found[name] = _read(annotation, value[name], at)
        elif is_required:
            raise ValueError(f"{at}: missing")
    return found


@cache
def _list_fields(kind: Any) -> list[tuple[str, Any, bool]]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind)
    return [(each.name, hints[each.name], each.default is MISSING) for each in fields(kind)]


def _check(is_valid: bool, place: str, wanted: str) -> None:
    if not is_valid:
        raise ValueError(": ".join(filter(None, (place, f"not {wanted}"))))
