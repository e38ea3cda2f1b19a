"""Finds the photos of folders by the same rules for all commands; imports no ONNX Runtime."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import compress
from pathlib import Path

from service.errors import StartError, escape
from service.images.formats import describe_kind, is_overlay_name, is_photo_name, starts_photo

START_BYTES = 12
"""Of a file that may be a photo by its content."""

_KINDS_SHOWN = 5
_READERS = 16  # an object store takes some 30 ms to read a file
# Thumbnails of Synology and QNAP, and the copies that macOS puts into ZIP files.
_THUMBNAIL_FOLDERS = frozenset({"@eaDir", "@__thumb", "__MACOSX"})
# Pipes that a shell opens already have a writer: `< photo.jpg`, `<(command)`.
_SHELL_PIPES = ("/dev/stdin", "/dev/fd/")

LeftOut = Counter[str]
"""The number of other files and folders, by kind; the kind of a folder is its name and `/`."""


def find_photos(paths: Sequence[Path], exclude: Sequence[str] = ()) -> tuple[list[Path], LeftOut]:
    """Returns photos of files and folders, and counts of others; StartError if there are none."""
    photos: list[Path] = []
    left_out = LeftOut()
    for path in paths:
        try:
            inside, others = list_photos(str(path), exclude)
        except OSError:  # a file, or missing or unreadable, which is reported when it is read
            photos.append(path)
            continue
        if not inside:
            raise StartError(f"{path} contains no photos{explain_none(others)}")
        photos.extend(path / name for name in inside)
        left_out.update(others)
    return photos, left_out


def list_photos(folder: str, exclude: Sequence[str] = ()) -> tuple[list[str], LeftOut]:
    """Returns the photos in and below a folder, relative to it, sorted; counts what it leaves out.

    Links are followed, each folder once. Dangling links, pipes and unreadable subfolders are among
    the photos: reading them fails, which is reported. Raises OSError for the folder itself.
    """
    unread: list[str] = []

    def note(error: OSError) -> None:
        if error.filename == folder:
            raise error
        unread.append(os.path.relpath(error.filename, folder))

    def read_start(name: str) -> bytes:
        return read_photo(os.path.join(folder, name), START_BYTES)

    photos, left_out = split_photos(_walk(folder, note, exclude), read_start, exclude)
    return sorted([*photos, *unread]), left_out


def split_photos(
    names: Iterable[str], read_start: Callable[[str], bytes], exclude: Sequence[str] = ()
) -> tuple[list[str], LeftOut]:
    """Splits relative names of files into sorted photos and counts of others.

    If the ending of a file does not decide, its first bytes do: `read_start` returns `START_BYTES`
    of a file, or raises OSError. It is called in several threads. Hidden folders, folders of
    thumbnails and names that `exclude` matches are left out; a folder counts once. The pictures of
    `--explain` and XMP sidecars are neither photos nor counted.
    """
    photos: list[str] = []
    left_out = LeftOut()
    undecided: list[str] = []
    folders: set[str] = set()
    for name in names:
        file = os.path.basename(name)
        if skipped := _find_skipped_folder(name, exclude):
            folders.add(skipped)
        elif is_overlay_name(file) or file.lower().endswith(".xmp"):
            continue
        elif _is_excluded(name, exclude):
            left_out["excluded"] += 1
        elif is_photo := is_photo_name(file):
            photos.append(name)
        elif is_photo is None:
            undecided.append(name)
        else:
            left_out[describe_kind(file)] += 1

    by_content = _find_by_content(undecided, read_start)
    others = (os.path.basename(name) for name in undecided if name not in by_content)
    left_out.update(map(describe_kind, others))
    left_out.update(f"{os.path.basename(name)}/" for name in folders)
    return sorted([*photos, *by_content]), left_out


def _find_by_content(names: Sequence[str], read_start: Callable[[str], bytes]) -> set[str]:
    def is_photo(name: str) -> bool:
        try:
            return starts_photo(read_start(name))
        except OSError:
            return False

    with ThreadPoolExecutor(_READERS) as pool:
        return set(compress(names, pool.map(is_photo, names)))


def describe_left_out(left_out: LeftOut) -> str:
    """Returns one line: `3 files left out (2 .heic: needs the extra heif; 1 .tiff)`."""
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))[:_KINDS_SHOWN]
    kinds = [f"{count} {escape(kind)}" for kind, count in most]
    if others := left_out.total() - sum(count for _, count in most):
        kinds.append(f"{others} of other kinds")
    folders = sum(count for kind, count in left_out.items() if kind.endswith("/"))
    counts = [(left_out.total() - folders, "file"), (folders, "folder")]
    parts = [f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count]
    return f"{' and '.join(parts)} left out ({'; '.join(kinds)})"


def explain_none(left_out: LeftOut) -> str:
    """Returns the end of the message that there are no photos."""
    return f": {describe_left_out(left_out)}" if left_out else ""


def read_photo(path: str | Path, max_bytes: int = -1) -> bytes:
    """Returns at most `max_bytes` of a file; OSError for pipes and devices, which could block."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_SHELL_PIPES)):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    with open(path, "rb") as file:
        return file.read(max_bytes)


def _walk(folder: str, onerror: Callable[[OSError], None], exclude: Sequence[str]) -> Iterator[str]:
    """Yields the names of files; of a folder to skip only the folder, with `/` at its end."""
    seen = {os.path.realpath(folder)}
    for parent, folders, files in os.walk(folder, onerror=onerror, followlinks=True):
        base = "" if parent == folder else f"{os.path.relpath(parent, folder)}/"
        yield from (base + name for name in files)
        inside, folders[:] = sorted(folders), []
        for name in inside:
            below, real = f"{base}{name}/", os.path.realpath(os.path.join(parent, name))
            if _find_skipped_folder(below, exclude):
                yield below
            elif real not in seen:
                seen.add(real)
                folders.append(name)


def _find_skipped_folder(name: str, exclude: Sequence[str]) -> str | None:
    """Returns the outermost folder of a file's name that is skipped, or None."""
    parts = name.split("/")[:-1]
    for depth, part in enumerate(parts, start=1):
        folder = "/".join(parts[:depth])
        if part.startswith(".") or part in _THUMBNAIL_FOLDERS or _is_excluded(folder, exclude):
            return folder
    return None


def _is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Returns whether a pattern matches the base name or, if it contains `/`, the whole name."""
    base = os.path.basename(name)
    wanted = [pattern.rstrip("/") for pattern in patterns]
    return any(fnmatchcase(name if "/" in pattern else base, pattern) for pattern in wanted)
