"""Files with labels in the order of the logits: a name a line, or as published taggers have them.

Names are not checked: `read_source` does it for all origins.
"""

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export import ExportError
from models.checkpoints.description import read_names
from models.checkpoints.hub import fetch
from models.checkpoints.preparation import TAGS
from service.bundle.card import Label
from service.labels.label_set import RATING

TAG_FILES = (TAGS, "class.json", "tags.json", "tagger_tags.json", "tags_v0.9_13k.json")
_CATEGORIES = {
    **{"0": "general", "1": "artist", "3": "copyright", "4": "character", "5": "meta"},
    "9": RATING,
}
_MAX_BYTES = 10_000_000  # 10,861 tags have 300 kB


def read_tag_file(path: Path, home: Path) -> tuple[Label, ...]:
    """Returns the labels of a file; `home` has the `thresholds.csv` of a table, for `fetch`."""
    if path.suffix.lower() == ".json":
        return tuple(_read_json_labels(path))
    lines = read_lines(path)
    # With commas it is a table, whose rows must not become names.
    if path.suffix.lower() == ".csv" and ("," in lines[0] or lines[0] == "name"):
        return tuple(_read_table(path, home))
    return tuple(Label.model_construct(name=line) for line in lines if line)


def read_lines(path: Path) -> list[str]:
    """Returns the lines of a text, at least one, stripped and without empty ones at the end."""
    # Split at line feeds only: a name must not contain Python's other line ends.
    return [line.strip() for line in _read_text(path).rstrip().split("\n")]


def read_share(text: str, what: str) -> float:
    """Returns a number from 0 to 1; `what` it is begins the message of an error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ExportError(f"{what} must be a number from 0 to 1; it is {text!r:.80}")
    return value


def _read_table(path: Path, home: Path) -> Iterator[Label]:
    """Reads `selected_tags.csv`, with the thresholds of categories in `thresholds.csv`."""
    limits, by_category = fetch(home, "thresholds.csv"), dict[str | None, float]()
    for where, row in () if limits is None else _read_rows(limits, "category", "threshold"):
        if row["category"] in by_category:
            raise ExportError(f"{where}: category {row['category']} has another threshold already")
        by_category[row["category"]] = read_share(row["threshold"], f"{where}: threshold")
    for where, row in _read_rows(path, "name"):
        number, best = row.get("category"), row.get("best_threshold")
        if number is not None and number not in _CATEGORIES:
            raise ExportError(f"{where}: category {number!r:.80} is not {', '.join(_CATEGORIES)}")
        own = read_share(best, f"{where}: best_threshold") if best else by_category.get(number)
        category = number and _CATEGORIES[number]
        yield Label.model_construct(name=row["name"], category=category, threshold=own)


def _read_rows(path: Path, *required: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a CSV by column, each with its place for messages."""
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=""), restval="")
    try:
        missing = [column for column in required if column not in (rows.fieldnames or ())]
        if missing:
            raise ExportError(f"{path.name} has no column {missing[0]!r}")
        for row in rows:
            where = f"{path.name}: line {rows.line_num}"
            if None in row:
                raise ExportError(f"{where} has more cells than line 1")
            yield where, {column: cell.strip() for column, cell in row.items()}
    except csv.Error as error:
        raise ExportError(f"{path.name}: line {rows.line_num}: {error}") from error


def _read_json_labels(path: Path) -> Iterator[Label]:
    """Reads names in order, names by number, or numbers by name; PixAI's have categories."""
    try:
        content, characters = json.loads(_read_text(path)), 0
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path.name} is not JSON") from error
    general: int | None = None
    match content:
        case {"tags": list(tags)}:
            content = tags
        case {
            "tag_map": tags,
            "tag_split": {"gen_tag_count": int(general), "character_tag_count": int(characters)},
        }:
            content = tags
    names = _order_names(content)
    if names is None:
        raise ExportError(f"{path.name} must have a list of names, or number them from 0 to N - 1")
    if general is not None and not (0 <= general <= len(names) == general + characters):
        raise ExportError(f"{path.name}: tag_split must add up to {len(names)} tags")
    for position, name in enumerate(names):
        category = "general" if position < (general or 0) else "character"
        yield Label.model_construct(name=name, category=None if general is None else category)


def _order_names(content: Any) -> tuple[str, ...] | None:  # noqa: ANN401
    if isinstance(content, dict) and all(type(number) is int for number in content.values()):
        numbered = {number: name for name, number in content.items()}
        content = numbered if len(numbered) == len(content) else None  # else two have one number
    names = content.values() if isinstance(content, dict) else content
    is_named = isinstance(content, list | dict) and all(isinstance(name, str) for name in names)
    return read_names(content) if is_named else None


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ExportError(f"{path.name} must have at most {_MAX_BYTES} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path.name} cannot be read, or is not UTF-8") from error
