"""Tag files of published taggers: names, categories and thresholds in the order of the logits."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from export import ExportError
from models.checkpoints.description import read_names
from models.checkpoints.files import fetch
from service.bundle.card import Label, format_first_error

RATING = "rating"

_SELECTED = "selected_tags.csv"
_CONFIG = "config.json"
_LISTS = (_CONFIG, "class.json", "tags.json", "tagger_tags.json")
_PIXAI = "tags_v0.9_13k.json"
_CATEGORIES = {0: "general", 1: "artist", 3: "copyright", 4: "character", 5: "meta", 9: RATING}
_MAX_BYTES = 10_000_000  # 10,861 tags have 300 kB

_label = TypeAdapter(Label)
_category_names = TypeAdapter(dict[int, Annotated[str, Field(min_length=1, max_length=200)]])
_number = TypeAdapter(int)
_share = TypeAdapter(Annotated[float, Field(ge=0, le=1)])
ValueT = TypeVar("ValueT")


class TagFileError(ExportError):
    """A tag file is damaged or incomplete; the message names it."""


def find_tags(checkpoint: Path | str, *, named: bool) -> tuple[str, tuple[Label, ...]] | None:
    """Returns the first tag file beside a checkpoint, its name and its labels; None without one.

    If the checkpoint is `named`, it has names of its own: only files with categories count.
    """
    for name in (_SELECTED, *(() if named else _LISTS), _PIXAI):
        path = fetch(checkpoint, name)
        if path is not None and name == _SELECTED:
            return name, _read_csv(path, checkpoint)
        # Other programs write a `config.json` too.
        if path is not None and (name != _CONFIG or _is_timm(_read_json(path))):
            return name, _parse_json(_read_json(path), name)
    return None


def read_tag_file(path: Path) -> tuple[Label, ...] | None:
    """Returns the labels of a tag file; None if it is a plain text."""
    if path.suffix.lower() == ".json":
        return _parse_json(_read_json(path), path.name)
    if path.suffix.lower() != ".csv":
        return None
    head = _read_text(path).partition("\n")[0]
    # With commas it is a table, whose rows must not become names.
    return _read_csv(path, path.parent) if "," in head or head.strip() == "name" else None


def _is_timm(config: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(config, dict) and {"architecture", "tags"} <= config.keys()


def _read_csv(path: Path, folder: Path | str) -> tuple[Label, ...]:
    """Reads `selected_tags.csv`; `categories.json` and `thresholds.csv` may lie in the `folder`."""
    names, thresholds = _read_category_names(folder), _read_thresholds(folder)
    labels, places = [], dict[str, str]()
    for where, row in _read_rows(path, "name"):
        fields: dict[str, Any] = {"name": row["name"].strip()}
        if "category" in row:
            number = _check(_number, row["category"], f"{where}: category")
            if number not in names:
                raise TagFileError(f"{where}: category {number} has no name in categories.json")
            fields |= {"category": names[number], "threshold": thresholds.get(number)}
        fields |= {"threshold": best} if (best := row.get("best_threshold")) else {}
        labels.append(_check(_label, fields, where))
        before = places.setdefault(fields["name"], where)
        if before != where:
            raise TagFileError(f"{where} has the name of {before}, {fields['name']!r}: rename one")
    return tuple(labels)


def _read_category_names(folder: Path | str) -> dict[int, str]:
    """Reads {number: name}, or a list of {"category": number, "name": name}."""
    path = fetch(folder, "categories.json")
    found = {} if path is None else _read_json(path)
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        found = {str(each.get("category")): each.get("name") for each in found}
    return _CATEGORIES | _check(_category_names, found, "categories.json")


def _read_thresholds(folder: Path | str) -> dict[int, float]:
    path, found = fetch(folder, "thresholds.csv"), dict[int, float]()
    for where, row in () if path is None else _read_rows(path, "category", "threshold"):
        number = _check(_number, row["category"], where)
        if number in found:
            raise TagFileError(f"{where}: category {number} has another threshold already")
        found[number] = _check(_share, row["threshold"], where)
    return found


def _parse_json(found: Any, origin: str) -> tuple[Label, ...]:  # noqa: ANN401
    """Reads names in order, names by number, or numbers by name; PixAI's have categories."""
    split = None
    if isinstance(found, dict) and isinstance(found.get("tag_map"), dict):
        found, split = found["tag_map"], found.get("tag_split")
    elif isinstance(found, dict) and isinstance(found.get("tags"), list):
        found = found["tags"]
    if isinstance(found, dict) and all(type(number) is int for number in found.values()):
        turned = {number: name for name, number in found.items()}
        found = turned if len(turned) == len(found) else None  # else two have one number
    values = found.values() if isinstance(found, dict) else found
    is_named = isinstance(found, list | dict) and all(isinstance(name, str) for name in values)
    names = read_names(found) if is_named else None
    if names is None:
        raise TagFileError(f"{origin} must have a list of names, or number them from 0 to N - 1")
    categories = (
        [None] * len(names) if split is None else _split_categories(split, len(names), origin)
    )
    return tuple(
        _check(_label, {"name": name, "category": category}, f"{origin}: tag {place}")
        for place, (name, category) in enumerate(zip(names, categories, strict=True))
    )


def _split_categories(split: Any, count: int, origin: str) -> list[str]:  # noqa: ANN401
    match split:
        case {"gen_tag_count": int(general), "character_tag_count": int(characters)} if (
            min(general, characters) >= 0 and general + characters == count
        ):
            return ["general"] * general + ["character"] * characters
    raise TagFileError(
        f"{origin}: gen_tag_count and character_tag_count must add up to {count} tags"
    )


def _read_rows(path: Path, *required: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a CSV by column, each with its place for messages."""
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=""), restval="")
    try:
        missing = [column for column in required if column not in (rows.fieldnames or ())]
        if missing:
            raise TagFileError(f"{path.name} has no column {missing[0]!r}")
        for row in rows:
            if None in row:
                raise TagFileError(f"{path.name}: line {rows.line_num} has more cells than line 1")
            yield f"{path.name}: line {rows.line_num}", row
    except csv.Error as error:
        raise TagFileError(f"{path.name}: line {rows.line_num}: {error}") from error


def _check(kind: TypeAdapter[ValueT], value: object, where: str) -> ValueT:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise TagFileError(f"{where}: {format_first_error(error)}") from error


def _read_json(path: Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise TagFileError(f"{path.name} is not JSON") from error


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise TagFileError(f"{path.name} must have at most {_MAX_BYTES} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TagFileError(f"{path.name} cannot be read, or is not UTF-8") from error
