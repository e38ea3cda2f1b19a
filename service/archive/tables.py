"""Tables of photos and their tags: CSV, or the JSON of a labelled folder."""

import codecs
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from service.archive import SEPARATOR, PhotoTags, Tag
from service.bundle.card import format_first_error
from service.errors import StartError, list_names, quote
from service.fields import LabelText
from service.files import read_rows
from service.images.folders import read_photo

_Row = tuple[str, list[str], list[Tag]]
"""Where it is, for messages; the places where the photo may be; tags."""


class LabelledImage(BaseModel):
    """One photo; all labels that are not listed are absent."""

    split: str | None = None
    labels: list[LabelText]


class LabelledImages(BaseModel):
    """The photos of a labelled folder, by file."""

    images: dict[str, LabelledImage]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Reads JSON in UTF-8. Raises ValidationError."""
        return cls.model_validate_json(content.removeprefix(codecs.BOM_UTF8))


def read_tag_table(file: Path, photos: Path) -> tuple[dict[str, PhotoTags], list[str]]:
    """Returns the tags of photos by their names relative to a folder, and names that it lacks.

    A CSV has a header with `path` and `tags`, separated by commas, or `tag`; `/` and `|` separate
    the levels of a tag. JSON is `{"images": {file: {"labels": [...]}}}`; files may be in the
    subfolder `images`. Raises OSError, and StartError for another file or if no photo is there.
    """
    found, missing = defaultdict[str, dict[Tag, None]](dict), dict[str, None]()
    try:
        content = read_photo(file)
        is_json = content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        for where, places, tags in (_read_json if is_json else _read_csv)(content):
            names = [_find_name(place, photos, where) for place in places]
            name = next((name for name in names if os.path.isfile(photos / name)), None)
            if name is None:
                missing[names[0]] = None
            else:
                found[name] |= dict.fromkeys(tags)
    except ValidationError as error:
        raise StartError(f"{file}: {format_first_error(error)}") from error
    except ValueError as error:
        raise StartError(f"{file}: {error}") from error
    if not found:
        listed = f"; it names {list_names([*missing])}" if missing else ""
        raise StartError(f"{file} must name photos by their paths relative to {photos}{listed}")
    return {name: PhotoTags(tuple(tags)) for name, tags in found.items()}, [*missing]


def _read_json(content: bytes) -> Iterator[_Row]:
    for name, image in LabelledImages.parse(content).images.items():
        places = [name, os.path.join("images", name)]
        yield "images", places, [(label,) for label in image.labels]


def _read_csv(content: bytes) -> Iterator[_Row]:
    rows = read_rows(content)
    line, header = next(rows, (1, []))
    columns = [cell.lower() for cell in header]
    used = sorted(column for column in columns if column in ("path", "tag", "tags"))
    if used not in (["path", "tag"], ["path", "tags"], ["path", "tag", "tags"]):
        raise ValueError(
            f"Line {line} must name the columns, path and tags or tag; it has {list_names(header)}"
        )
    for line, cells in rows:
        if any(cells[len(columns) :]):
            raise ValueError(
                f"Line {line} has {len(cells)} values, for {len(columns)} columns: write tags "
                'with commas in quotes, as "cat,dog"'
            )
        row = dict(zip(columns, cells, strict=False))
        texts = [row.get("tag", ""), *row.get("tags", "").split(",")]
        tags = [tuple(filter(None, map(str.strip, SEPARATOR.split(text)))) for text in texts]
        yield f"Line {line}", [row.get("path", "")], [*filter(None, tags)]


def _find_name(path: str, photos: Path, where: str) -> str:
    """Returns the name of a photo relative to the folder; ValueError if it is not below it."""
    for folder in (os.path.abspath(photos), os.path.realpath(photos)):
        name = os.path.relpath(os.path.join(folder, path), folder)
        if name != os.curdir and name.split(os.sep)[0] != os.pardir:
            return name
    raise ValueError(f"{where}: {quote(path)} is no photo below {photos}: correct the path")
