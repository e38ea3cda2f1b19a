"""Photos of a folder: the same files for every command that is given one.

In: a folder, or files and folders. Out: the names of the photos in it and below, or the files, and
what was left out, so that nobody takes a photo of another kind for one without labels. It needs no
ONNX Runtime, for `ml-decoder bench` has none. Next: `cli/photos.py` and `bulk/photos.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from service.errors import StartError
from service.images.formats import is_overlay_name, is_photo_name, name_kind

_KINDS_TOLD = 5

LeftOut = Counter[str]
"""How many files of each kind were not taken for photos."""


def find_photos(paths: Sequence[Path]) -> tuple[list[Path], LeftOut]:
    """Returns the files, and in place of a folder the photos in it and below, by name.

    Beside them it returns what else the folders hold. A folder below that cannot be read is among
    the photos: it is told like a photo that cannot.

    Raises:
        StartError: a folder holds no photo.
    """
    found: list[Path] = []
    left_out = LeftOut()
    for path in paths:
        if not path.is_dir():
            found.append(path)  # one that is not there is told like one that is broken
            continue
        inside, others = _search(path)
        if not inside:
            raise StartError(f"{path} holds no photo{explain_none(others)}")
        found.extend(inside)
        left_out.update(others)
    return found, left_out


def list_photos(folder: str, onerror: Callable[[OSError], None]) -> tuple[list[str], LeftOut]:
    """Returns the names of the photos in a folder and below, sorted, and what else is there.

    Names are relative to the folder. Hidden folders are not searched; links are followed, and a
    folder that they lead back to counts once.

    Args:
        folder: where to search.
        onerror: is told of every folder that cannot be read; it may raise the error.
    """
    paths = _walk(folder, onerror)
    photos, left_out = sort_out(os.path.relpath(path, folder) for path in paths)
    return [name for name in photos if Path(folder, name).is_file()], left_out


def sort_out(names: Iterable[str]) -> tuple[list[str], LeftOut]:
    """Returns those names that are taken for photos, sorted, and what the others are.

    Pictures that `ml-decoder predict --explain` wrote are neither.
    """
    photos: list[str] = []
    left_out = LeftOut()
    for name in names:
        file = os.path.basename(name)
        if is_photo_name(file):
            photos.append(name)
        elif not is_overlay_name(file):
            left_out[name_kind(file)] += 1
    return sorted(photos), left_out


def describe_left_out(left_out: LeftOut) -> str:
    """Returns one line: `3 files left out (2 .heic: needs the extra heif; 1 .tiff)`."""
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))[:_KINDS_TOLD]
    kinds = [f"{count} {kind}" for kind, count in most]
    if others := left_out.total() - sum(count for _, count in most):
        kinds.append(f"{others} of other kinds")
    files = "file" if left_out.total() == 1 else "files"
    return f"{left_out.total()} {files} left out ({'; '.join(kinds)})"


def explain_none(left_out: LeftOut) -> str:
    """Returns what to add to the news that there is no photo."""
    return f": {describe_left_out(left_out)}" if left_out else ""


def _search(folder: Path) -> tuple[list[Path], LeftOut]:
    unread: list[Path] = []
    names, left_out = list_photos(str(folder), lambda error: unread.append(Path(error.filename)))
    return sorted([*unread, *(folder / name for name in names)]), left_out


def _walk(folder: str, onerror: Callable[[OSError], None]) -> Iterator[str]:
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, onerror=onerror, followlinks=True):
        yield from (os.path.join(place, name) for name in files)
        inside, folders[:] = sorted(folders), []
        for name in inside:
            real = os.path.realpath(os.path.join(place, name))
            if real not in seen and not name.startswith("."):
                seen.add(real)
                folders.append(name)
