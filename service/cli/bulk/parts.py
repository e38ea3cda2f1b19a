"""Results of a bulk run: a folder of Parquet files, each written completely or not at all.

A photo is done if it is in a part, so the next run continues after a crash. A part is named after
its photos: one that is computed twice replaces itself. `_bulk.json` keeps the question, so that a
folder never mixes answers to different questions. `_words.json` has the words of labels in the
language of the last run, for tags. Answers to label sets that have learnt since are
collected in `_next`, and replace the others when they are complete.
"""

import fcntl
import hashlib
import io
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
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
from service.labels.label_set import LabelSet
from service.pipeline.prediction import Prediction
from service.question import Question

QUESTION_FILE = "_bulk.json"
_WORDS_FILE = "_words.json"
_LOCK_FILE = "_bulk.lock"
_NEXT = "_next"  # readers of Parquet folders ignore names with such a beginning
_LEARNT = " has learnt since"
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
TEXTS = "texts"
"""Key of `describe_texts` of each label set in a question; those of 1.0 and 1.1 have none."""

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
    earlier: "PartFolder | None" = None  # results that these replace when they are complete

    def read_done(self) -> dict[str, bool]:
        """Returns the photos that are done, and whether each was tagged without an error."""
        done: dict[str, bool] = {}
        for path in self.list_parts():
            table = self._read_table(path, ["photo", "error"])
            usable = table.column("error").is_null().to_pylist()
            done.update(zip(table.column("photo").to_pylist(), usable, strict=True))
        return done

    def read_embedded(self, names: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """Yields at most `most` rows of those photos at a time, with all columns but labels."""
        wanted = pa.array(names, pa.string())
        columns = ["photo", "width", "height", "error", "embedding"]
        for path in self.list_parts():
            table = self._read_table(path, columns)
            chosen = table.filter(pc.is_in(table["photo"], wanted)).combine_chunks()
            yield from chosen.to_batches(max_chunksize=most)

    def read_found(self) -> Iterator[tuple[str, list[str]]]:
        """Yields each tagged photo and the names of its found labels, best first."""
        for path in self.list_parts():
            table = self._read_table(path, ["photo", "labels"])
            for rows in table.filter(pc.is_valid(table["labels"])).to_batches(_ROWS_AT_ONCE):
                for row in rows.to_pylist():
                    labels = filter(_is_found, row["labels"])
                    yield row["photo"], [label["label"] for label in labels]

    def read_words(self) -> dict[str, Any]:
        """Returns `describe_words` of the last run; nothing if there is none or it is damaged."""
        path = posixpath.join((self.earlier or self).folder, _WORDS_FILE)
        with suppress(FileNotFoundError, ValueError):
            return dict(json.loads(read_file(self.filesystem, path)))
        return {}

    def write_words(self, words: dict[str, Any]) -> None:
        """Stores `describe_words`; names that a label had stay: the user may have deleted one."""
        for name, row in self.read_words().items():
            if name in words:
                words[name]["names"] = sorted({*words[name]["names"], *row["names"]})
        path = posixpath.join((self.earlier or self).folder, _WORDS_FILE)
        self._write_file(path, _dump(words))

    def forget_failed(self, names: Sequence[str]) -> None:
        """Removes the rows of those photos that have an error."""
        wanted = pa.array(names, pa.string())
        for path in self.list_parts():
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
        asked = self.question["question"]
        if "lang" in asked:
            label.append(pa.field("translation", pa.string()))
        if asked.get("parents"):
            names = ["parents", *["parent_translations"] * ("lang" in asked)]
            label += [pa.field(name, pa.list_(pa.string())) for name in names]
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

    def adopt_question(
        self, location: str, sets: Sequence[LabelSet] = (), *, add_new: bool = False
    ) -> "PartFolder":
        """Stores the question in a new folder; returns the folder with the question that it has.

        The photos may be spelled in another way. If only the `sets` have learnt since, `add_new`
        returns a folder of results to replace these. Raises StartError if something else differs.
        """
        path = posixpath.join(self.folder, QUESTION_FILE)
        if self.filesystem.get_file_info(path).type == fs.FileType.NotFound:
            if self.list_parts() or self._read_next().question:
                raise StartError(f"{location} has parts but no {QUESTION_FILE}: use another folder")
            self._write_file(path, _dump(self.question))
            return self
        results = _read_results(location)
        results.finish_replacing()
        begun, question = results.question, self.describe_as(results.question)
        if _find_place(photos := question["photos"]) == _find_place(begun["photos"]):
            question["photos"] = begun["photos"]
        if changes := _list_changes(begun, question, sets):
            step = "repeat the earlier options, or use another folder"
            if all(change.endswith(_LEARNT) for change in changes):
                if add_new:
                    return results.begin_next(self.question | {"photos": begun["photos"]})
                step = "add --add-new to tag all photos again, or use another folder"
            if question["photos"] != begun["photos"] and not Path(photos, QUESTION_FILE).exists():
                step += f"; if the photos moved, add --photos {photos}"
            raise StartError(f"{location} was begun otherwise: {'; '.join(changes)}: {step}")
        return replace(self, question=question)

    def describe_as(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Returns the question as the version describes it that began some results."""
        described = json.loads(_dump(self.question))
        return {k: v for k, v in described.items() if k in begun or k not in (FLAGGED, TEXTS)}

    def begin_next(self, question: dict[str, Any]) -> "PartFolder":
        """Begins or continues the results in `_next`, of a question with lessons since."""
        coming, question = self._read_next(), json.loads(_dump(question))
        self.filesystem.create_dir(coming.folder)
        if coming.question | {"photos": None} != question | {"photos": None}:
            for path in coming.list_parts():
                self.filesystem.delete_file(path)
        self._write_file(posixpath.join(coming.folder, QUESTION_FILE), _dump(question))
        return replace(coming, question=question)

    def adopt_next(self) -> None:
        """Replaces these results by those in `_next`, which are complete."""
        question = self._read_next().question
        # From here on, the next run finishes what this one may not.
        self._write_file(posixpath.join(self.folder, QUESTION_FILE), _dump(question))
        replace(self, question=question).finish_replacing()

    def is_being_replaced(self) -> bool:
        """Whether `_bulk.json` is of the results in `_next`, of which some have to be moved in."""
        return bool(self._read_next().question.get("label_sets") == self.question["label_sets"])

    def finish_replacing(self) -> None:
        """Deletes earlier parts and moves those of `_next` in, if a run was stopped before that."""
        if not self.is_being_replaced():
            return
        for path in self.list_parts():
            with self.filesystem.open_input_file(path) as file:
                described = (pq.read_schema(file).metadata or {}).get(_METADATA_KEY, b"{}")
            if json.loads(described).get("label_sets") != self.question["label_sets"]:
                self.filesystem.delete_file(path)
        coming = self._read_next()
        for path in coming.list_parts():
            self.filesystem.move(path, posixpath.join(self.folder, posixpath.basename(path)))
        self.filesystem.delete_dir(coming.folder)

    def _read_next(self) -> "PartFolder":
        """Returns the results in `_next`; their question is empty if there are none."""
        folder = posixpath.join(self.folder, _NEXT)
        question: Any = None
        if os.path.islink(folder):  # files in it are deleted
            raise StartError(f"{folder} must be a folder, not a link: delete it")
        with suppress(FileNotFoundError, ValueError):  # a damaged one is begun anew
            question = json.loads(read_file(self.filesystem, posixpath.join(folder, QUESTION_FILE)))
        question = question if isinstance(question, dict) else {}
        return PartFolder(self.filesystem, folder, question, self)

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

    def list_parts(self) -> list[str]:
        """Returns the paths of the files, in order."""
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
def open_parts(
    location: str, question: dict[str, Any], sets: Sequence[LabelSet] = (), *, add_new: bool = False
) -> Iterator[PartFolder]:
    """Opens the results of a question; raises StartError if another run or question uses them.

    With `add_new`, opens results to replace them if the `sets` of the question have learnt since.
    """
    filesystem, folder = open_filesystem(location)
    parts = PartFolder(filesystem, folder, question)
    try:
        filesystem.create_dir(folder, recursive=True)
        with _lock(parts, location):
            yield parts.adopt_question(location, sets, add_new=add_new)
    except OSError as error:
        raise StartError(f"{location}: {error.strerror or 'cannot be used'}") from error


def open_results(location: str) -> PartFolder:
    """Opens the results of an earlier run, to read them; raises StartError."""
    results = _read_results(location)
    if results.is_being_replaced():
        with _lock(results, location):
            results.finish_replacing()
    return results


def _read_results(location: str) -> PartFolder:
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


def _list_changes(
    begun: dict[str, Any], now: dict[str, Any], sets: Sequence[LabelSet] = ()
) -> list[str]:
    """Returns in words what differs; of label sets only if nothing else does."""
    old, new = (
        {
            **(each | each["question"] | {"question": None, ENCODER: None, TEXTS: None}),
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
    pairs = enumerate(zip(begun["label_sets"], now["label_sets"], strict=False))
    return changes or [_describe_change(begun, now, i, sets) for i, (a, b) in pairs if a != b]


def _describe_change(
    begun: dict[str, Any], now: dict[str, Any], row: int, sets: Sequence[LabelSet]
) -> str:
    """Returns in words what a set did; if it learnt, it may have new labels and thresholds too."""
    old, new = begun["label_sets"][row], now["label_sets"][row]
    has_learnt = bool(sets) and new.get("examples") not in (None, old.get("examples"))
    if has_learnt and TEXTS in begun:
        has_learnt = begun[TEXTS][row] == describe_texts(sets[row], begun[TEXTS][row][0])
    elif has_learnt:
        has_learnt = old["digest"] == new["digest"]
    return f"label set {old['name']}{_LEARNT if has_learnt else ' has changed since'}"


def describe_texts(labels: LabelSet, count: int | None = None) -> list[Any]:
    """Returns the number of a set's labels, or of its first ones, and a hash of their texts."""
    columns = labels.names, labels.prompts, labels.own_embeddings.tolist()
    content = repr([column[:count] for column in columns]).encode()
    return [len(labels.names[:count]), hashlib.sha256(content).hexdigest()]


@contextmanager
def copy_results(location: str) -> Iterator[str]:
    """Yields a temporary folder with the parts of results; new ones are lost with it."""
    filesystem, folder = open_filesystem(location)
    with make_folder() as (copy, _):
        Path(copy, _NEXT).mkdir()
        places = folder, posixpath.join(folder, _NEXT)
        selectors = [fs.FileSelector(place, allow_not_found=True) for place in places]
        for info in chain.from_iterable(map(filesystem.get_file_info, selectors)):
            path = Path(copy, posixpath.relpath(info.path, folder))
            if not (path.match(_PARTS) or path.name in (QUESTION_FILE, _WORDS_FILE)):
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
def _lock(results: PartFolder, location: str) -> Iterator[None]:
    if not isinstance(results.filesystem, fs.LocalFileSystem):  # object stores have none
        yield
        return
    path = os.path.join(results.folder, _LOCK_FILE)
    if os.path.islink(path):
        raise StartError(f"{path} must be a file, not a link: delete it")
    # Not "w", which empties a file that another run has locked.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o666), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(f"{location}: another run writes into this folder") from error
        for left in Path(results.folder).glob(".part-*.tmp"):  # of a run that was killed
            left.unlink()
        yield


def _is_found(label: Record) -> bool:
    return bool(label.get("found", label["score"] >= label["threshold"]))


def _dump(question: dict[str, Any]) -> bytes:
    return (json.dumps(question, indent=2, sort_keys=True) + "\n").encode()
