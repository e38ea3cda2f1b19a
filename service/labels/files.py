"""Label set files: JSON or `.npz` becomes a definition, and back to `.npz`.

JSON is a `LabelSetRecord`, the same as the body of `POST /labels`. An `.npz` has the arrays `names`
(text [L]) and `embeddings` (float [L, E]), and optionally `prompts` (text [L], empty for none),
`thresholds` (float [L], NaN for none) and `embedding_space` (one text). Pickles are never read.
"""

import io
import json
import lzma
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from service.bundle.card import format_first_error
from service.errors import InvalidLabelSet, StartError
from service.labels.definition import (
    Definition,
    LabelSetRecord,
    define_label_set,
    refuse_duplicates,
)
from service.labels.text import LabelSetName, LabelText, PromptText

SUFFIXES = (".json", ".npz")
MAX_FILE_BYTES = 1 << 30
_NPZ_REQUIRED = frozenset({"names", "embeddings"})
_NPZ_ARRAYS = _NPZ_REQUIRED | {"prompts", "thresholds", "embedding_space"}
# Raised by zipfile and numpy on a damaged, encrypted or pickled file.
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(ValueError, EOFError, OSError, RuntimeError),
)

_set_name = TypeAdapter[str](LabelSetName)
_prompt = TypeAdapter[str](PromptText)
_label_names = TypeAdapter[tuple[str, ...]](tuple[LabelText, ...])


def read_label_set_file(path: Path, name: str | None = None) -> Definition:
    """Reads a `.json` or `.npz` file; without `name`, the set has the file's.

    Raises `StartError` with a one-line reason.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidLabelSet(f"The file has more than {MAX_FILE_BYTES} bytes")
        return parse_label_set(path.read_bytes(), path.suffix, name or path.stem)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror or 'cannot be read'}") from error
    except InvalidLabelSet as error:
        raise StartError(f"{path}: {error.reason}") from error


def read_label_set_folder(folder: Path) -> tuple[Definition, ...]:
    """Reads every label set of a folder, ordered by name; raises `StartError` as above."""
    if not folder.is_dir():
        raise StartError(f"label_sets must be a folder; it is {folder}")
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    stems = [path.stem for path in files]
    for stem in stems:
        if stems.count(stem) > 1:
            raise StartError(f"label_sets: {folder} has the set {stem} twice")
    return tuple(read_label_set_file(path) for path in files)


def parse_label_set(content: bytes, suffix: str, name: str) -> Definition:
    """Parses the content of a file as the set `name`; raises `InvalidLabelSet`."""
    try:
        _set_name.validate_python(name)
    except ValidationError as error:
        raise InvalidLabelSet(f"'{name[:80]}': {format_first_error(error)}") from error
    if suffix == ".npz":
        return _parse_npz(content, name)
    if suffix == ".json":
        return _parse_json(content, name)
    raise InvalidLabelSet(f"A label set file ends in {' or '.join(SUFFIXES)}")


def pack_label_set(definition: Definition) -> bytes:
    """Returns an `.npz` of a set whose labels all have embeddings, stored as float16.

    The same set has the same bytes.
    """
    thresholds = [math.nan if value is None else value for value in definition.thresholds]
    arrays: dict[str, NDArray[Any]] = {
        "names": np.array(definition.names),
        "embeddings": definition.embeddings.astype(np.float16),
        "prompts": np.array([prompt or "" for prompt in definition.prompts]),
        "thresholds": np.array(thresholds, np.float64),
    }
    if definition.embedding_space is not None:
        arrays["embedding_space"] = np.array(definition.embedding_space)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            # `ZipInfo` has a fixed time; `np.savez` would write the time of day.
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), member.getvalue())
    return stream.getvalue()


def _parse_json(content: bytes, name: str) -> Definition:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidLabelSet("The file is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidLabelSet("The file is not a JSON object")
    if value.setdefault("name", name) != name:
        raise InvalidLabelSet(f"The set's name is not '{name}'")
    try:
        return define_label_set(LabelSetRecord.model_validate(value))
    except ValidationError as error:
        raise InvalidLabelSet(format_first_error(error)) from error


def _parse_npz(content: bytes, name: str) -> Definition:
    arrays = _read_arrays(content)
    names, embeddings = arrays["names"], arrays["embeddings"]
    if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
        raise InvalidLabelSet("names is not a list of texts")
    if embeddings.ndim != 2 or embeddings.dtype.kind != "f" or len(embeddings) != len(names):
        raise InvalidLabelSet("embeddings is not one row of floats for each name")
    try:
        labels = _label_names.validate_python(names.tolist())
    except ValidationError as error:
        raise InvalidLabelSet(f"names: {format_first_error(error)}") from error
    space = arrays.get("embedding_space")
    with np.errstate(over="ignore"):
        return Definition(
            name=name,
            names=refuse_duplicates(labels),
            prompts=_read_prompts(arrays.get("prompts"), len(labels)),
            thresholds=_read_thresholds(arrays.get("thresholds"), len(labels)),
            given=tuple(range(len(labels))),
            embeddings=embeddings.astype(np.float32),
            embedding_space=None if space is None else str(space),
        )


def _read_prompts(values: NDArray[Any] | None, count: int) -> tuple[str | None, ...]:
    if values is None:
        return (None,) * count
    if values.shape != (count,) or values.dtype.kind != "U":
        raise InvalidLabelSet("prompts is not one text for each name")
    try:
        return tuple(_prompt.validate_python(text) if text else None for text in values.tolist())
    except ValidationError as error:
        raise InvalidLabelSet(f"prompts: {format_first_error(error)}") from error


def _read_thresholds(values: NDArray[Any] | None, count: int) -> tuple[float | None, ...]:
    if values is None:
        return (None,) * count
    if values.shape != (count,) or values.dtype.kind != "f":
        raise InvalidLabelSet("thresholds is not one float for each name")
    found = tuple(None if math.isnan(value) else float(value) for value in values)
    if not all(value is None or 0.0 <= value <= 1.0 for value in found):
        raise InvalidLabelSet("A threshold is not between 0 and 1")
    return found


def _read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not _NPZ_REQUIRED <= members.keys() <= _NPZ_ARRAYS:
                raise InvalidLabelSet(f"The arrays are not {', '.join(sorted(_NPZ_ARRAYS))}")
            if sum(info.file_size for info in members.values()) > MAX_FILE_BYTES:
                raise InvalidLabelSet(f"The arrays have more than {MAX_FILE_BYTES} bytes")
            return {key: _read_array(archive.read(info)) for key, info in members.items()}
    except InvalidLabelSet:
        raise
    except _UNREADABLE as error:
        raise InvalidLabelSet("The file is not a readable .npz without pickle") from error


def _read_array(content: bytes) -> NDArray[Any]:
    # numpy allocates the size in the header, so the header is checked first.
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(stream)
    if math.prod(shape) * dtype.itemsize > len(content):
        raise ValueError("the header claims more bytes than the array has")
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array
