"""Parts: the results of a bulk run as a folder of Parquet files, each written whole or not at all.

In: records of tagged photos. Out: `part-<hash>.parquet` files. A photo is done when it stands in
a part; a run that was killed leaves whole parts only, so the next run goes on with the rest. A
part is named after the photos it was written with: one that is computed twice replaces itself.
`_bulk.json` keeps what was asked, so that one folder never mixes answers to different questions.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from service.cli.bulk.photos import open_filesystem
from service.errors import StartError

QUESTION_FILE = "_bulk.json"
_LOCK_FILE = "_bulk.lock"
_METADATA_KEY = b"ml-decoder"

_LABEL = pa.struct(
    [
        pa.field("label", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("threshold", pa.float32(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("calibrated", pa.bool_(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("photo", pa.string(), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("labels", pa.list_(_LABEL)),
        pa.field("error", pa.string()),
    ]
)
"""One row a photo: its name, its size upright in pixels and its labels, best first; or, where it
cannot be used, nulls and a sentence that says why."""

Record = dict[str, Any]
"""One row, keyed by the columns of `SCHEMA`."""


@dataclass(frozen=True, eq=False)
class PartFolder:
    """A folder of results; may be sent to other processes.

    Attributes:
        filesystem: local or remote.
        folder: path in it.
        question: what was asked of every photo, JSON values.
    """

    filesystem: fs.FileSystem
    folder: str
    question: dict[str, Any]

    def read_done(self) -> dict[str, bool]:
        """Returns the photos that stand in a part, and whether each could be used.

        Raises:
            StartError: a part cannot be read.
        """
        done: dict[str, bool] = {}
        for path in self._list_parts():
            table = self._read(path, ["photo", "error"])
            usable = table.column("error").is_null().to_pylist()
            done.update(zip(table.column("photo").to_pylist(), usable, strict=True))
        return done

    def forget_failed(self, names: Sequence[str]) -> None:
        """Removes the rows of those photos that could not be used: they are done no more.

        Nobody ever sees a photo twice, and a run that is killed leaves them to the next one.

        Raises:
            StartError: a part cannot be read.
            OSError: it cannot be written.
        """
        wanted = pa.array(names, pa.string())
        for path in self._list_parts():
            table = self._read(path)
            failed = pc.and_(pc.is_valid(table["error"]), pc.is_in(table["photo"], wanted))
            kept = table.filter(pc.invert(failed))
            if not kept.num_rows:
                self.filesystem.delete_file(path)
            elif kept.num_rows < table.num_rows:
                write_whole(self.filesystem, path, _encode(kept))

    def write(self, records: Sequence[Record]) -> None:
        """Writes one part; it is there whole when this returns, and after a crash whole or not.

        Raises:
            OSError: it cannot be written.
        """
        metadata = {_METADATA_KEY: _dump(self.question)}
        table = pa.Table.from_pylist(list(records), schema=SCHEMA.with_metadata(metadata))
        names = "\n".join(record["photo"] for record in records)
        name = f"part-{hashlib.sha256(names.encode()).hexdigest()[:24]}.parquet"
        write_whole(self.filesystem, posixpath.join(self.folder, name), _encode(table))

    def _read(self, path: str, columns: list[str] | None = None) -> pa.Table:
        try:
            with self.filesystem.open_input_file(path) as file:
                return pq.read_table(file, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise StartError(f"{path} cannot be read: delete it to tag it again") from error

    def _list_parts(self) -> list[str]:
        found = self.filesystem.get_file_info(fs.FileSelector(self.folder))
        names = sorted(info.path for info in found if info.type == fs.FileType.File)
        return [n for n in names if _is_part(posixpath.basename(n))]


@contextmanager
def open_parts(location: str, question: dict[str, Any]) -> Iterator[PartFolder]:
    """Opens a folder for the results of a question, new or begun; one run at a time.

    Args:
        location: path or URL of the folder.
        question: what is asked of every photo.

    Raises:
        StartError: the folder cannot be used, holds answers to another question, or another
            run writes into it.
    """
    filesystem, folder = open_filesystem(location)
    parts = PartFolder(filesystem, folder, question)
    try:
        filesystem.create_dir(folder, recursive=True)
        with _alone(filesystem, folder, location):
            _agree_on_question(parts, location)
            yield parts
    except OSError as error:
        raise StartError(f"{location}: {error.strerror or 'cannot be used'}") from error


def write_whole(filesystem: fs.FileSystem, path: str, content: bytes) -> None:
    """Writes a file so that nobody ever sees a part of it.

    Raises:
        OSError: it cannot be written.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):
        # Object stores show an object when it is complete.
        with filesystem.open_output_stream(path) as stream:
            stream.write(content)
        return
    folder, name = os.path.split(path)
    staging = Path(folder) / f".{name}.{os.getpid()}.tmp"
    with staging.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)


@contextmanager
def _alone(filesystem: fs.FileSystem, folder: str, location: str) -> Iterator[None]:
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield  # object stores have no locks
        return
    with (Path(folder) / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(f"{location}: another run writes into this folder") from error
        for left in Path(folder).glob(".part-*.tmp"):  # of a run that was killed
            left.unlink()
        yield


def _agree_on_question(parts: PartFolder, location: str) -> None:
    path = posixpath.join(parts.folder, QUESTION_FILE)
    if parts.filesystem.get_file_info(path).type == fs.FileType.NotFound:
        if parts._list_parts():
            raise StartError(f"{location} holds parts but no {QUESTION_FILE}: take another folder")
        write_whole(parts.filesystem, path, _dump(parts.question))
        return
    with parts.filesystem.open_input_stream(path) as stream:
        content: bytes = stream.read()
    if content != _dump(parts.question):
        raise StartError(
            f"{location} was begun with another model, label set, question, input or limit: "
            f"{QUESTION_FILE} tells which; take another folder"
        )


def _is_part(name: str) -> bool:
    return name.startswith("part-") and name.endswith(".parquet")


def _encode(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _dump(question: dict[str, Any]) -> bytes:
    return (json.dumps(question, indent=2, sort_keys=True) + "\n").encode()
