"""Reads parsed JSON into frozen dataclasses by their annotations; unknown fields are ignored."""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ResultT = TypeVar("ResultT")

_JSON_NAMES = {
    **{dict: "an object", list: "a list", str: "a text", bool: "true or false"},
    **{int: "a number", float: "a number"},
}


def read_json(kind: type[ResultT], value: object) -> ResultT:
    """Returns a `kind`, a dataclass; raises ValueError with the path of the first wrong value."""
    result: ResultT = _read(kind, value, "")
    return result


def _read(kind: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - any annotation, any JSON
    if kind is Any or (value is None and NoneType in get_args(kind)):
        return value
    if NoneType in get_args(kind):
        (kind,) = set(get_args(kind)) - {NoneType}
    shape = dict if is_dataclass(kind) else get_origin(kind) or kind
    # In JSON 1.0 may be written as 1; Python's `bool` is an `int`.
    is_kind = isinstance(value, int | float if shape is float else shape)
    if not is_kind or (isinstance(value, bool) and shape is not bool):
        raise ValueError(": ".join(filter(None, (path, f"not {_JSON_NAMES[shape]}"))))
    if is_dataclass(kind):
        return _read_fields(kind, value, path)
    if shape is list:
        (item,) = get_args(kind)
        return [_read(item, element, f"{path}.{i}") for i, element in enumerate(value)]
    return value


def _read_fields(kind: Any, value: dict[str, Any], path: str) -> Any:  # noqa: ANN401
    values = {}
    for name, annotation, is_required in _list_fields(kind):
        at = f"{path}.{name}" if path else name
        if name in value:
            values[name] = _read(annotation, value[name], at)
        elif is_required:
            raise ValueError(f"{at}: missing")
    return kind(**values)


@cache
def _list_fields(kind: Any) -> list[tuple[str, Any, bool]]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind)
    return [
        (field.name, hints[field.name], field.default is field.default_factory is MISSING)
        for field in fields(kind)
    ]
