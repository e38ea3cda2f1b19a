"""Results of a bulk run: a folder of Parquet files, each written completely or not at all.

A photo is done if it is in a part, so the next run continues after a crash. A part is named after
its photos: one that is computed twice replaces itself. `_bulk.json` keeps the question, so that a
folder never mixes answers to different questions.
"""

import fcntl
import hashlib
import io
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from service.cli.bulk.photo_store import open_filesystem, read_file
from service.cli.folders import make_folder
from service.errors import StartError
from service.files import replace_file
from service.pipeline.prediction import Prediction
from service.question import Question

QUESTION_FILE = "_bulk.json"
_LOCK_FILE = "_bulk.lock"
_PARTS = "part-*.parquet"
_METADATA_KEY = b"ml-decoder"
_MAX_QUESTION_BYTES = 1 << 26  # of 1,000 label sets 300 kB
_ROWS_AT_ONCE = 16  # a row may have 9,605 labels of 1 kB each

CATEGORIES = "categories"
"""Key of a label set in a question, if its labels have categories."""
ENCODER = "encoder"
"""Key of the image encoder in a question, if the rows have embeddings."""
FLAGGED = "found"
"""Key in a question, if the labels of the rows have the flag `found`: those of 1.0 have not."""

Record = dict[str, Any]
"""One row by column; missing columns are null."""


def make_record(photo: str, prediction: Prediction) -> Record:
    """Returns the row of a photo that has labels."""
    answer = prediction.describe()
    row = {"photo": photo, **answer["image"], "labels": [*answer["labels"]]}
    return row if prediction.embedding is None else row | {"embedding": prediction.embedding}


@dataclass(frozen=True, eq=False)
class PartFolder:
    """A folder of results; can be pickled."""

    filesystem: fs.FileSystem
    folder: str
    question: dict[str, Any]  # `describe_question`

    def read_done(self) -> dict[str, bool]:
        """Returns the photos that are done, and whether each was tagged without an error."""
        done: dict[str, bool] = {}
        for path in self._list_parts():
            table = self._read_table(path, ["photo", "error"])
            usable = table.column("error").is_null().to_pylist()
            done.update(zip(table.column("photo").to_pylist(), usable, strict=True))
        return done

    def read_embedded(self, names: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yields at most `most` rows of those photos at a time, with all columns but labels."""
        wanted = pa.array(names, pa.string())
        columns = ["photo", "width", "height", "error", "embedding"]
        for path in self._list_parts():
            table = self._read_table(path, columns)
            chosen = table.filter(pc.is_in(table["photo"], wanted)).combine_chunks()
            yield from chosen.to_batches(max_chunksize=most)

    def read_found(self) -> Iterator[tuple[str, list[str]]]:
        """Yields each tagged photo and the names of its found labels, best first."""
        for path in self._list_parts():
            table = self._read_table(path, ["photo", "labels"])
            for rows in table.filter(pc.is_valid(table["labels"])).to_batches(_ROWS_AT_ONCE):
                for row in rows.to_pylist():
                    labels = filter(_is_found, row["labels"])
                    yield row["photo"], [label["label"] for label in labels]

    def forget_failed(self, names: Sequence[str]) -> None:
        """Removes the rows of those photos that have an error."""
        wanted = pa.array(names, pa.string())
        for path in self._list_parts():
            table = self._read_table(path)
            failed = pc.and_(pc.is_valid(table["error"]), pc.is_in(table["photo"], wanted))
            kept = table.filter(pc.invert(failed))
            if not kept.num_rows:
                self.filesystem.delete_file(path)
            elif kept.num_rows < table.num_rows:
                self._write_table(path, kept)

    def write(self, records: Sequence[Record]) -> None:
        """Writes one part durably; raises OSError."""
        table = pa.Table.from_pylist(list(records), schema=self._make_schema())
        names = "\n".join(record["photo"] for record in records)
        name = f"part-{hashlib.sha256(names.encode()).hexdigest()[:24]}.parquet"
        self._write_table(posixpath.join(self.folder, name), table)

    def _make_schema(self) -> pa.Schema:
        """One row per photo: upright size in pixels and labels, best first, or else the error."""
        label = [
            pa.field("label", pa.string(), nullable=False),
            pa.field("score", pa.float32(), nullable=False),
            pa.field("threshold", pa.float32(), nullable=False),
            *[pa.field("found", pa.bool_(), nullable=False)] * (FLAGGED in self.question),
            pa.field("source", pa.string(), nullable=False),
            pa.field("calibrated", pa.bool_(), nullable=False),
        ]
        if any(CATEGORIES in labels for labels in self.question["label_sets"]):
            label.append(pa.field("category", pa.string()))
        columns = [
            pa.field("photo", pa.string(), nullable=False),
            pa.field("width", pa.int32()),
            pa.field("height", pa.int32()),
            pa.field("labels", pa.list_(pa.struct(label))),
            pa.field("error", pa.string()),
        ]
        if ENCODER in self.question:
            columns.append(pa.field("embedding", pa.list_(pa.float32())))
        return pa.schema(columns, {_METADATA_KEY: _dump(self.question)})

    def adopt_question(self, location: str) -> "PartFolder":
        """Stores the question in a new folder; returns the folder with the question that it has.

        The photos may be spelled in another way. Raises StartError if something else differs.
        """
        path = posixpath.join(self.folder, QUESTION_FILE)
        if self.filesystem.get_file_info(path).type == fs.FileType.NotFound:
            if self._list_parts():
                raise StartError(f"{location} has parts but no {QUESTION_FILE}: use another folder")
            self._write_file(path, _dump(self.question))
            return self
        begun = open_results(location).question
        question = json.loads(_dump(self.question))
        if FLAGGED not in begun:  # by version 1.0
            question.pop(FLAGGED, None)
        if _find_place(photos := question["photos"]) == _find_place(begun["photos"]):
            question["photos"] = begun["photos"]
        if changes := "; ".join(_list_changes(begun, question)):
            step = "repeat the earlier options, or use another folder"
            if question["photos"] != begun["photos"] and not Path(photos, QUESTION_FILE).exists():
                step += f"; if the photos moved, add --photos {photos}"
            raise StartError(f"{location} was begun otherwise: {changes}: {step}")
        return replace(self, question=question)

    def move_photos(self, location: str, given: str) -> None:
        """Records the place that the photos moved to; raises StartError if none is there.

        `given`, the IN of the run, must be this place or the earlier one.
        """
        if _find_place(given) not in map(_find_place, (location, self.question["photos"])):
            raise StartError(f"IN and --photos are two places, {given} and {location}: give one")
        filesystem, base = open_filesystem(location)
        if filesystem.get_file_info(base).type == fs.FileType.File:  # a list
            base = posixpath.dirname(base)
        paths = [posixpath.join(base, name) for name in self.read_done()]
        kinds = (filesystem.get_file_info(path).type for path in paths)
        if paths and all(kind == fs.FileType.NotFound for kind in kinds):
            raise StartError(f"--photos: {paths[0]} is missing, as all photos of {self.folder} are")
        moved = _dump(self.question | {"photos": spell_place(location)})
        self._write_file(posixpath.join(self.folder, QUESTION_FILE), moved)

    def _list_parts(self) -> list[str]:
        entries = self.filesystem.get_file_info(fs.FileSelector(self.folder))
        paths = sorted(info.path for info in entries if info.type == fs.FileType.File)
        return [path for path in paths if Path(path).match(_PARTS)]

    def _read_table(self, path: str, columns: list[str] | None = None) -> pa.Table:
        try:
            with self.filesystem.open_input_file(path) as file:
                return pq.read_table(file, columns=columns, schema=self._make_schema())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StartError(f"{path} cannot be read: delete it to tag it again") from error

    def _write_table(self, path: str, table: pa.Table) -> None:
        buffer = io.BytesIO()
        # Numbers of embeddings do not repeat: 0.2 s instead of 1.2 for 1,000 photos.
        repeats = "embedding" not in table.column_names
        pq.write_table(table, buffer, compression="zstd", use_dictionary=repeats)
        self._write_file(path, buffer.getvalue())

    def _write_file(self, path: str, content: bytes) -> None:
        """Writes a file; readers see either nothing or all of it."""
        if not isinstance(self.filesystem, fs.LocalFileSystem):
            # Object stores show complete objects only.
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(content)
            return
        replace_file(Path(path), content, f".{os.path.basename(path)}.{os.getpid()}.tmp")


@contextmanager
def open_parts(location: str, question: dict[str, Any]) -> Iterator[PartFolder]:
    """Opens the results of a question; raises StartError if another run or question uses them."""
    filesystem, folder = open_filesystem(location)
    parts = PartFolder(filesystem, folder, question)
    has_locks = isinstance(filesystem, fs.LocalFileSystem)  # object stores have none
    try:
        filesystem.create_dir(folder, recursive=True)
        with _lock(folder, location) if has_locks else nullcontext():
            yield parts.adopt_question(location)
    except OSError as error:
        raise StartError(f"{location}: {error.strerror or 'cannot be used'}") from error


def open_results(location: str) -> PartFolder:
    """Opens the results of an earlier run, to read them; raises StartError."""
    filesystem, folder = open_filesystem(location)
    try:
        path = posixpath.join(folder, QUESTION_FILE)
        question = json.loads(read_file(filesystem, path, _MAX_QUESTION_BYTES))
        Question.model_validate(question["question"])
        _list_changes(question, question)  # raises without a key
        _find_place(question["photos"])
        return PartFolder(filesystem, folder, question)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = "has no results: run bulk without --add-new, --from and --photos first"
        if not isinstance(error, FileNotFoundError):
            reason = f"has a {QUESTION_FILE} that cannot be read: use another folder"
        raise StartError(f"{location} {reason}") from error


def spell_place(location: str) -> str:
    """Returns the path or URL of a folder or list of photos as it is recorded."""
    return location if "://" in location else str(Path(location).absolute())


def _find_place(location: str) -> str:
    """Returns the same text for all spellings of a folder or list."""
    if "://" in location:
        return location.rstrip("/")
    if os.path.isdir(location):
        return os.path.realpath(location)
    # Links to a list are not followed: its names are relative to the folder of the link.
    return str(Path(location).parent.resolve() / Path(location).name)


def _list_changes(begun: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns in words what differs; of label sets only if nothing else does."""
    old, new = (
        {
            **(each | each["question"] | {"question": None, ENCODER: None}),
            "embedding": each.get(ENCODER, "none"),
            "model": " ".join(each["model"].values()),
            "label_sets": [labels["name"] for labels in each["label_sets"]],
        }
        for each in (begun, now)
    )
    changes = [
        f"{name} was {old.get(name, 'none')}, is {new.get(name, 'none')}"
        for name in old | new
        if old.get(name) != new.get(name)
    ]
    pairs = zip(begun["label_sets"], now["label_sets"], strict=False)
    return changes or [f"label set {a['name']} has changed since" for a, b in pairs if a != b]


@contextmanager
def copy_results(location: str) -> Iterator[str]:
    """Yields a temporary folder with the parts of results; new ones are lost with it."""
    filesystem, folder = open_filesystem(location)
    with make_folder() as (copy, _):
        for info in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            path = Path(copy, info.base_name)
            if not (path.match(_PARTS) or path.name == QUESTION_FILE):
                continue
            if isinstance(filesystem, fs.LocalFileSystem):
                path.symlink_to(info.path)
            else:
                fs.copy_files(info.path, str(path), source_filesystem=filesystem)
        try:
            yield copy
        except StartError as error:
            raise StartError(str(error).replace(copy, location)) from error


@contextmanager
def _lock(folder: str, location: str) -> Iterator[None]:
    path = os.path.join(folder, _LOCK_FILE)
    if os.path.islink(path):
        raise StartError(f"{path} must be a file, not a link: delete it")
    # Not "w", which empties a file that another run has locked.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o666), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(f"{location}: another run writes into this folder") from error
        for left in Path(folder).glob(".part-*.tmp"):  # of a run that was killed
            left.unlink()
        yield


def _is_found(label: Record) -> bool:
    return bool(label.get("found", label["score"] >= label["threshold"]))


def _dump(question: dict[str, Any]) -> bytes:
    return (json.dumps(question, indent=2, sort_keys=True) + "\n").encode()
