"""Photos of a bulk run: a folder or a list of files, on disk or in an object store."""

import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from service.errors import StartError
from service.fields import is_utf8
from service.images import folders
from service.images.raw import load_photo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PhotoStore:
    """A folder of photos; can be pickled. Names are relative to it."""

    filesystem: fs.FileSystem
    folder: str

    def read(self, name: str, max_bytes: int) -> bytes:
        """Returns at most `max_bytes` + 1 bytes, or a RAW file's preview; OSError, ImageError."""
        return load_photo(name, max_bytes + 1, self.read_start)

    def read_start(self, name: str, max_bytes: int = folders.START_BYTES) -> bytes:
        """Returns at most `max_bytes` of a file; raises OSError."""
        path = posixpath.join(self.folder, name)
        if isinstance(self.filesystem, fs.LocalFileSystem):
            return folders.read_photo(path, max_bytes)
        return read_file(self.filesystem, path, max_bytes)


def open_photos(location: str, exclude: Sequence[str] = ()) -> tuple[PhotoStore, list[str], int]:
    """Returns the store, unique names of a folder or list, and the number of things left out."""
    filesystem, path = open_filesystem(location)
    left_out = folders.LeftOut()
    try:
        kind = filesystem.get_file_info(path).type
        if kind == fs.FileType.Directory:
            store = PhotoStore(filesystem, path)
            names, left_out = _search_folder(store, exclude)
        elif kind == fs.FileType.File:
            if exclude:
                raise StartError(f"--exclude-path needs a folder of photos; {location} is a list")
            store = PhotoStore(filesystem, posixpath.dirname(path))
            names = _read_list(filesystem, path)
        else:
            raise StartError(f"{location}: no such folder or list")
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise StartError(f"{error.filename or location}: {reason}") from error
    if not names:
        raise StartError(f"{location} has no photos{folders.explain_none(left_out)}")
    if left_out:
        logger.warning("%s: %s", location, folders.describe_left_out(left_out))
    return store, names, left_out.total()


def open_filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a path or URL, and the path in it."""
    try:
        if "://" in location:
            filesystem, path = fs.FileSystem.from_uri(location)
            return filesystem, str(path)
        path = str(Path(location).absolute())
        if not is_utf8(path):
            raise StartError(f"{location}: the path is not UTF-8: rename the folder or link to it")
        return fs.LocalFileSystem(), path
    except (ValueError, OSError, ImportError) as error:  # pyarrow's errors are among these
        raise StartError(f"{location}: file system not available: {error}") from error


def read_file(filesystem: fs.FileSystem, path: str, max_bytes: int | None = None) -> bytes:
    """Returns at most `max_bytes` of a file; raises OSError."""
    with filesystem.open_input_stream(path) as stream:
        content: bytes = stream.read(max_bytes)
    return content


def _search_folder(store: PhotoStore, exclude: Sequence[str]) -> tuple[list[str], folders.LeftOut]:
    if isinstance(store.filesystem, fs.LocalFileSystem):
        return folders.list_photos(store.folder, exclude)
    entries = store.filesystem.get_file_info(fs.FileSelector(store.folder, recursive=True))
    files = (info.path for info in entries if info.type == fs.FileType.File)
    names = (posixpath.relpath(path, store.folder) for path in files)
    return folders.split_photos(names, store.read_start, exclude)


def _read_list(filesystem: fs.FileSystem, path: str) -> list[str]:
    content = read_file(filesystem, path)
    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    if b"\0" in content or not any(map(is_utf8, lines)):
        raise StartError(f"{path} is neither a folder nor a list of names in UTF-8")
    return list(dict.fromkeys(filter(None, (line.strip() for line in lines))))
