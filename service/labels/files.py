"""Label set files: JSON, `.npz`, text or CSV becomes a definition, and back to `.npz`.

- JSON is a `LabelSetRecord`, the same as the body of `POST /labels`.
- An `.npz` has the arrays `names` (text [L]) and `embeddings` (float [L, E], or [L, descriptions,
  width] for several descriptions). Optional are `prompts` (text [L], empty for none), `thresholds`
  (float [L], NaN for none), `embedding_space` (one text), `calibration` (float [2], scale and
  shift) and `given` (bool [L], false for a label whose text is encoded again). Examples of M labels
  have `learnt` (text [M]), `lessons` (uint8, one after the other), `lesson_sizes` (int [M]) and
  `encoder` (one text). `words` (uint8) is the JSON of aliases, parents and translations. Pickles
  are never read.
- A text has a name a line. A CSV has a header with `name` and optionally `prompt`, `threshold`,
  `alias`, `parent` (several are separated by `;`) and `translation:de` and so on, or one column of
  names without a header.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from service import errors
from service.bundle.card import Calibration, format_first_error
from service.bundle.manifest import WORDS_FILE
from service.bundle.reader import Bundle
from service.engine.heads import Embeddings
from service.errors import BundleError, InvalidLabelSet, LabelSetError, StartError, quote
from service.fields import LabelSetName, LabelText, PromptText
from service.files import decode_text, read_rows
from service.images.folders import read_photo
from service.labels.arrays import read_arrays
from service.labels.definition import (
    Definition,
    LabelSetRecord,
    check_count,
    check_fit,
    check_size,
    refuse_duplicates,
)
from service.labels.sources.examples import Examples
from service.labels.sources.learnt import Lessons, list_contents, read_lesson
from service.labels.sources.source import Lesson
from service.labels.words import Words, pack_words, parse_words

FOLDER_SUFFIXES = (".json", ".npz")
"""Other files of a folder of label sets are ignored: a text may be a README."""
SUFFIXES = (*FOLDER_SUFFIXES, ".txt", ".csv")
MAX_FILE_BYTES = 1 << 30
MAX_TEXT_BYTES = 1 << 26
"""Of JSON, text and CSV, which take up to 30 times their size in memory."""
MAX_LABELS = 100_000
"""Most labels of a set, unless a setting limits them: each takes 1 kB before it is checked."""
# An export of RAM++ with one of 51 descriptions a label has 85 times the bytes of its file.
_MAX_INFLATION = 100
_SMALL_BYTES = 1 << 24  # arrays of this size are read from a file of any size
_CSV_COLUMNS = ("name", "prompt", "threshold", "alias", "parent")
_TRANSLATION = "translation:"  # and a language: the start of further columns
_SEPARATOR = ";"  # of several aliases or parents
_MAX_ENCODER_CHARACTERS = 64
_NPZ_REQUIRED = ("names", "embeddings")
_NPZ_LESSONS = ("learnt", "lessons", "lesson_sizes", "encoder")
_NPZ_OPTIONAL = (
    *("prompts", "thresholds", "embedding_space", "calibration", "given"),
    *(*_NPZ_LESSONS, "lesson_kinds"),  # without kinds, all lessons are examples (1.1)
    "words",  # JSON of `labels.words`, uint8
)

_set_name = TypeAdapter[str](LabelSetName)
_label_names = TypeAdapter[tuple[str, ...]](tuple[LabelText, ...])
_prompt = TypeAdapter[str | None](PromptText | None)
_calibration = TypeAdapter[Calibration | None](Calibration | None)
ValueT = TypeVar("ValueT")


def read_label_set_file(
    path: Path, name: str | None = None, max_labels: int = MAX_LABELS
) -> Definition:
    """Reads a file that ends in one of `SUFFIXES`. Raises `StartError` with a one-line reason."""
    suffix = path.suffix.lower()
    try:
        if path.stat().st_size > (MAX_FILE_BYTES if suffix == ".npz" else MAX_TEXT_BYTES):
            limits = f"{MAX_TEXT_BYTES} bytes, an .npz {MAX_FILE_BYTES}"
            raise InvalidLabelSet(f"The file must have at most {limits}")
        return parse_label_set(read_photo(path), suffix, name or path.stem, max_labels)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror or 'cannot be read'}") from error
    except InvalidLabelSet as error:
        raise StartError(f"{path}: {error.reason}") from error


def read_label_set_folder(folder: Path, max_labels: int = MAX_LABELS) -> tuple[Definition, ...]:
    """Reads every label set of a folder, ordered by name. Raises `StartError` as above."""
    if not folder.is_dir():
        raise StartError(f"label_sets must be an existing folder; it is {folder}")
    files = sorted(path for path in folder.iterdir() if path.suffix in FOLDER_SUFFIXES)
    stems = [path.stem for path in files]
    for stem in stems:
        if stems.count(stem) > 1:
            raise StartError(f"label_sets: {folder} has two files of the set {stem}: remove one")
    return tuple(read_label_set_file(path, None, max_labels) for path in files)


def read_bundle_sets(bundle: Bundle) -> tuple[Definition, ...]:
    """Reads a bundle's label sets, by name. Raises `BundleError` if one cannot be used."""
    definitions = []
    head, encodes_text = bundle.card.open_head, "text_encoder" in bundle.manifest.graphs
    space = None if head is None else head.embedding_space
    for file, content in bundle.read_label_sets().items():
        try:
            definition = parse_label_set(content, Path(file).suffix, Path(file).stem)
            learnt = definition.lessons
            definition = check_fit(definition, space, encodes_text=encodes_text, learnt=learnt)
            definitions.append(definition)
        except LabelSetError as error:
            reason = error.reason if isinstance(error, InvalidLabelSet) else error.describe()
            raise BundleError(f"label set {file}: {reason}") from error
    return tuple(definitions)


def read_bundle_words(bundle: Bundle) -> dict[str, Words]:
    """Reads the words of a bundle's labels and parents. Raises `BundleError`."""
    content = bundle.read_words()
    try:
        return {} if content is None else parse_words(content)
    except InvalidLabelSet as error:
        raise BundleError(f"{WORDS_FILE}: {error.reason}") from error


def parse_label_set(
    content: bytes, suffix: str, name: str, max_labels: int = MAX_LABELS
) -> Definition:
    """Parses the content of a file as the set `name`. Raises `InvalidLabelSet` if it is none."""
    _validate(_set_name, name, quote(name))
    if suffix == ".npz":
        return _parse_npz(content, name, max_labels)
    if suffix == ".json":
        return _parse_json(content, name, max_labels)
    try:
        if suffix == ".txt":
            lines = enumerate(decode_text(content).split("\n"), 1)
            rows = ((n, {"name": text}) for n, text in lines if text.strip())
            return _define_rows(rows, name, max_labels)
        if suffix == ".csv":
            return _define_rows(_read_csv(content), name, max_labels)
    except ValueError as error:
        raise InvalidLabelSet(str(error)) from error
    raise InvalidLabelSet(f"The name of the file must end in {' or '.join(SUFFIXES)}")


def pack_label_set(definition: Definition, embeddings: Embeddings | None = None) -> bytes:
    """Returns an `.npz`; its embeddings are float16, or those of all labels [L, E] as they are."""
    thresholds = [math.nan if value is None else value for value in definition.thresholds]
    arrays: dict[str, Any] = {
        "names": np.array(definition.names),
        "embeddings": definition.embeddings.astype(np.float16)
        if embeddings is None
        else embeddings,
        "prompts": np.array([prompt or "" for prompt in definition.prompts]),
        "thresholds": np.array(thresholds, np.float64),
    }
    if definition.embedding_space is not None:
        arrays["embedding_space"] = np.array(definition.embedding_space)
    if embeddings is not None:
        arrays["given"] = np.isin(np.arange(len(embeddings)), definition.given)
    if rows := list_contents(definition.lessons):
        labels, kinds, contents = zip(*rows, strict=True)
        content = np.frombuffer(b"".join(contents), np.uint8)
        sizes = np.array([*map(len, contents)])
        columns = (np.array(labels), content, sizes, np.array(definition.encoder))
        arrays |= zip(_NPZ_LESSONS, columns, strict=True)
        if {*kinds} != {Examples.kind}:
            arrays["lesson_kinds"] = np.array(kinds)
    if definition.words:
        arrays["words"] = np.frombuffer(pack_words(definition.words).encode(), np.uint8)
    if (pair := definition.calibration) is not None:
        arrays["calibration"] = np.array([pair.scale, pair.shift], np.float64)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def _parse_json(content: bytes, name: str, max_labels: int) -> Definition:
    # A label has two objects and three lists; 20 million empty objects would take 1.7 GB.
    check_size((content.count(b"{") + content.count(b"[")) // 5 - 1, max_labels)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidLabelSet(f"The file is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidLabelSet("The file must be a JSON object")
    if value.setdefault("name", name) != name:
        given = value["name"]
        shown = quote(given) if isinstance(given, str) else "no text"
        raise InvalidLabelSet(f"name must be {quote(name)}, or left out; it is {shown}")
    check_count(value, max_labels)
    try:
        return LabelSetRecord.model_validate(value).define()
    except ValidationError as error:
        raise InvalidLabelSet(format_first_error(error, LabelSetRecord)) from error


def _read_csv(content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the rows of a CSV with their line numbers; empty values are left out."""
    rows = read_rows(content)
    line, header = next(rows, (1, ["name"]))
    columns = [cell.lower() for cell in header]
    if columns != ["name"] and len(columns) == 1:
        columns, rows = ["name"], chain([(line, header)], rows)
    known = {*_CSV_COLUMNS, *(name for name in columns if name.startswith(_TRANSLATION))}
    if not {"name"} <= {*columns} <= known or len({*columns}) < len(columns):
        raise InvalidLabelSet(
            f"Line {line} must name the columns, name and optionally prompt, threshold, alias, "
            f"parent and {_TRANSLATION}LANGUAGE; it has {errors.list_names(header)}"
        )
    for line, cells in rows:
        if len(cells) > len(columns):
            raise InvalidLabelSet(
                f"Line {line} has {len(cells)} values, for {len(columns)} column(s)"
            )
        yield line, _read_row({c: cell for c, cell in zip(columns, cells, strict=False) if cell})


def _read_row(cells: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, cell in cells.items():
        if column.startswith(_TRANSLATION):
            row.setdefault("translations", {})[column.removeprefix(_TRANSLATION)] = cell
        elif column in ("alias", "parent"):
            parts = [part for part in cell.split(_SEPARATOR) if part.strip()]
            row["aliases" if column == "alias" else "parents"] = parts
        else:
            row[column] = cell
    return row


def _define_rows(
    rows: Iterator[tuple[int, dict[str, Any]]], name: str, max_labels: int
) -> Definition:
    """Returns the definition of labels with their line numbers, which `InvalidLabelSet` names."""
    numbered = list(islice(rows, max_labels))
    check_size(len(numbered) + sum(1 for _ in rows), max_labels)
    if not numbered:
        raise InvalidLabelSet("The file has no labels")
    lines, labels = zip(*numbered, strict=True)
    try:
        record = LabelSetRecord.model_validate({"name": name, "labels": labels})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        _, index, *column = first["loc"]
        reason = ": ".join([*map(str, column), first["msg"]])
        if isinstance(first["input"], str):  # else the row lacks the column
            reason = f"{reason}; it is {quote(first['input'])}"
        raise InvalidLabelSet(f"Line {lines[int(index)]}: {reason}") from error
    seen: dict[str, int] = {}
    for line, label in zip(lines, record.labels, strict=True):
        if seen.setdefault(label.name, line) != line:
            raise InvalidLabelSet(
                f"Line {line}: the label {quote(label.name)} is on line {seen[label.name]} too"
            )
    return record.define()


def _parse_npz(content: bytes, name: str, max_labels: int) -> Definition:
    most = min(MAX_FILE_BYTES, max(_SMALL_BYTES, _MAX_INFLATION * len(content)))
    try:
        arrays = read_arrays(content, _NPZ_REQUIRED, _NPZ_OPTIONAL, most=most)
    except ValueError as error:
        raise InvalidLabelSet(f"The file {error}") from error
    names, embeddings = arrays["names"], arrays["embeddings"]
    if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
        raise InvalidLabelSet("names must be a list of texts")
    check_size(len(names), max_labels)
    shaped = embeddings.ndim in (2, 3) and len(embeddings) == len(names)
    if not shaped or embeddings.dtype.kind != "f":
        raise InvalidLabelSet("embeddings must have one row of floats for each name")
    count, space = len(names), arrays.get("embedding_space")
    prompts = _take(arrays, "prompts", [""] * count, "have one text for each name")
    thresholds = _take(arrays, "thresholds", [math.nan] * count, "have one float for each name")
    pair = _take(arrays, "calibration", [1.0, 0.0], "be a scale and a shift")
    calibration = {"scale": pair[0], "shift": pair[1]} if "calibration" in arrays else None
    labels = refuse_duplicates(_validate(_label_names, names.tolist(), "names"))
    lessons = _read_lessons(arrays, frozenset(labels))
    embeddings = embeddings.reshape(count, math.prod(embeddings.shape[1:]))
    # A set without texts has embeddings of width 0.
    usual = embeddings.shape[1] > 0 or not lessons
    are_given = _take(arrays, "given", [usual] * count, "have one bool for each name")
    given = [position for position, is_given in enumerate(are_given) if is_given]
    with np.errstate(over="ignore"):
        return Definition(
            name=name,
            names=labels,
            prompts=tuple(_validate(_prompt, text or None, "prompts") for text in prompts),
            thresholds=_read_thresholds(thresholds),
            given=tuple(given),
            embeddings=embeddings[given].astype(np.float32),
            embedding_space=None if space is None else str(space),
            calibration=_validate(_calibration, calibration, "calibration"),
            lessons=lessons,
            encoder=str(arrays["encoder"]) if lessons else None,
            words=_read_words(arrays, frozenset(labels)),
        )


def _read_words(arrays: dict[str, NDArray[Any]], names: frozenset[str]) -> dict[str, Words]:
    content = arrays.get("words", np.zeros(0, np.uint8))
    if content.dtype != np.uint8 or content.ndim != 1:
        raise InvalidLabelSet("words must be bytes")
    words = parse_words(content.tobytes()) if len(content) else {}
    if not names.issuperset(words):
        raise InvalidLabelSet("words has labels that names has not")
    return words


def _read_lessons(arrays: dict[str, NDArray[Any]], names: frozenset[str]) -> Lessons:
    columns = [arrays.get(key, np.zeros(0)) for key in _NPZ_LESSONS]
    if not any(array.size for array in columns):
        return {}
    learnt, content, sizes, encoder = columns
    kinds = arrays.get("lesson_kinds", np.full(len(learnt), Examples.kind))
    fits = (
        learnt.ndim == sizes.ndim == content.ndim == kinds.ndim == 1
        and "".join(array.dtype.kind for array in (learnt, sizes, kinds, encoder)) == "UiUU"
        and content.dtype == np.uint8
        and len(learnt) == len(sizes) == len(kinds)
        and names.issuperset(learnt.tolist())
        and len({*zip(learnt.tolist(), kinds.tolist(), strict=True)}) == len(learnt)
        and (sizes > 0).all()
        and sizes.sum() == len(content)
        and encoder.shape == ()
        and len(str(encoder)) <= _MAX_ENCODER_CHARACTERS
        and ":" not in str(encoder)  # as in the store's keys of other kinds
    )
    if not fits:
        raise InvalidLabelSet(f"The arrays {', '.join(_NPZ_LESSONS)} do not fit each other")
    lessons: dict[str, dict[str, Lesson]] = {}
    parts = np.split(content, np.cumsum(sizes)[:-1])
    for name, kind, part in zip(learnt.tolist(), kinds.tolist(), parts, strict=True):
        lessons.setdefault(name, {})[kind] = read_lesson(kind, part.tobytes())
    return lessons


def _take(
    arrays: dict[str, NDArray[Any]], key: str, default: list[ValueT], rule: str
) -> list[ValueT]:
    usual = np.array(default)
    values = arrays.get(key, usual)
    if values.shape != usual.shape or values.dtype.kind != usual.dtype.kind:
        raise InvalidLabelSet(f"{key} must {rule}")
    return list(values.tolist())


def _validate(kind: TypeAdapter[ValueT], value: object, about: str) -> ValueT:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise InvalidLabelSet(f"{about}: {format_first_error(error)}") from error


def _read_thresholds(values: Sequence[float]) -> tuple[float | None, ...]:
    for number, value in enumerate(values, start=1):
        if not (math.isnan(value) or 0.0 <= value <= 1.0):
            raise InvalidLabelSet(
                f"Threshold {number} of {len(values)} must be from 0 to 1; it is {value:g}"
            )
    return tuple(None if math.isnan(value) else value for value in values)
