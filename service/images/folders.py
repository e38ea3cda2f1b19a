"""Lists the photos of folders, the same files for every command; imports no ONNX Runtime."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from service.errors import StartError
from service.images.formats import is_overlay_name, is_photo_name, name_kind

_KINDS_SHOWN = 5

LeftOut = Counter[str]
"""The number of other files, by kind."""


def find_photos(paths: Sequence[Path]) -> tuple[list[Path], LeftOut]:
    """Returns files, and the photos in and below folders, of `paths`; counts the other files.

    An unreadable subfolder is among the photos, so that it is reported like an unreadable photo.

    Raises:
        StartError: a folder contains no photos.
    """
    found: list[Path] = []
    left_out = LeftOut()
    for path in paths:
        if not path.is_dir():
            found.append(path)  # a missing file is reported like a damaged one
            continue
        inside, others = _search(path)
        if not inside:
            raise StartError(f"{path} contains no photos{explain_none(others)}")
        found.extend(inside)
        left_out.update(others)
    return found, left_out


def list_photos(folder: str, onerror: Callable[[OSError], None]) -> tuple[list[str], LeftOut]:
    """Returns the names of the photos in and below a folder, sorted; counts the other files.

    Names are relative to the folder. Hidden folders are skipped; links are followed, each folder
    once. `onerror` is called for every unreadable folder and may raise.
    """
    paths = _walk(folder, onerror)
    photos, left_out = sort_out(os.path.relpath(path, folder) for path in paths)
    return [name for name in photos if Path(folder, name).is_file()], left_out


def sort_out(names: Iterable[str]) -> tuple[list[str], LeftOut]:
    """Splits names into sorted photos and counts of others; `--explain`'s pictures are neither."""
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
    most = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))[:_KINDS_SHOWN]
    kinds = [f"{count} {kind}" for kind, count in most]
    if others := left_out.total() - sum(count for _, count in most):
        kinds.append(f"{others} of other kinds")
    files = "file" if left_out.total() == 1 else "files"
    return f"{left_out.total()} {files} left out ({'; '.join(kinds)})"


def explain_none(left_out: LeftOut) -> str:
    """Returns the end of the message that there are no photos."""
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
