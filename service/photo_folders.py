"""Photos of a folder: the same files for every command that is given one.

In: a folder, or files and folders. Out: the names of the photos in it and below, or the files. It
needs no ONNX Runtime, for `ml-decoder bench` has none. Next: `cli/photos.py` and `bulk/photos.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from service.errors import StartError
from service.formats import is_photo_name


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """Returns the files, and in place of a folder the photos in it and below, by name.

    A folder below that cannot be read is among them: it is told like a photo that cannot.

    Raises:
        StartError: a folder holds no photo.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)  # one that is not there is told like one that is broken
            continue
        inside = _search(path)
        if not inside:
            raise StartError(f"{path} holds no photo")
        found.extend(inside)
    return found


def list_photos(folder: str, onerror: Callable[[OSError], None]) -> list[str]:
    """Returns the names of the photos in a folder and below, relative to it and sorted.

    Hidden files and folders are left out; links are followed, and a folder that they lead back to
    counts once.

    Args:
        folder: where to search.
        onerror: is told of every folder that cannot be read; it may raise the error.
    """
    paths = (path for path in _walk(folder, onerror) if is_photo_name(os.path.basename(path)))
    return sorted(os.path.relpath(path, folder) for path in paths if Path(path).is_file())


def _search(folder: Path) -> list[Path]:
    unread: list[Path] = []
    names = list_photos(str(folder), lambda error: unread.append(Path(error.filename)))
    return sorted([*unread, *(folder / name for name in names)])


def _walk(folder: str, onerror: Callable[[OSError], None]) -> Iterator[str]:
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, onerror=onerror, followlinks=True):
        yield from (os.path.join(place, name) for name in files if not name.startswith("."))
        inside, folders[:] = sorted(folders), []
        for name in inside:
            real = os.path.realpath(os.path.join(place, name))
            if real not in seen and not name.startswith("."):
                seen.add(real)
                folders.append(name)
