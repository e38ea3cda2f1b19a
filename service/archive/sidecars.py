"""XMP sidecars: found beside their photos, and rewritten whole or not at all.

`a.jpg.xmp` is the sidecar of `a.jpg`; `a.xmp` is it if there is no other and no other photo has the
stem `a`. A sidecar that cannot be changed safely is left as it is.
"""

import contextlib
import logging
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from service.archive.embedded import read_embedded
from service.archive.tags import (
    ROOT,
    UserTags,
    find_rejected,
    merge,
    read_state,
    read_user_tags,
    write_state,
)
from service.archive.xmp import READ_ONLY, Packet, Tag
from service.bundle.card import fold_name
from service.files import replace_file
from service.images.folders import read_photo
from service.images.formats import RAW_ENDING, is_photo_name

# darktable's history of many drawn masks takes some hundred kB.
_MAX_BYTES = 8_000_000
# One name for all: a photo's own may be as long as the file system allows.
_STAGING = ".ml-decoder.xmp.tmp"
_SEPARATORS = str.maketrans("/|", "--")
_MARK = ROOT.encode()  # in the name of the memory's namespace too
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_OTHER_PICTURES = frozenset({".tif", ".tiff", ".psd", ".jxl", ".jp2"})

logger = logging.getLogger(__name__)

Choose = Callable[[Sequence[Tag], Sequence[str]], tuple[Sequence[Tag], Sequence[str]]]
"""Own tags and deleted names of a sidecar -> those that it shall have."""


class LeftAlone(Exception):
    """The sidecar belongs to other photos too, or is read-only."""


class Change(NamedTuple):
    """A sidecar after a change of its own tags, by their names."""

    path: str
    tags: tuple[str, ...]
    rejected: tuple[str, ...]  # deleted by the user
    added: tuple[str, ...]
    removed: tuple[str, ...]
    is_changed: bool
    is_deleted: bool  # nothing was left in it


class SidecarFinder:
    """Finds the sidecars of photos; lists a folder once if its photos come together."""

    def __init__(self) -> None:
        """Has listed no folder yet."""
        self._folder: Path | None = None
        self._names: dict[str, list[str]] = {}  # by stem, without case

    def find(self, photo: Path) -> Path:
        """Returns the photo's sidecar, which may not exist yet; raises LeftAlone, OSError."""
        if photo.parent != self._folder:
            self._names = defaultdict(list)
            for name in sorted(os.listdir(photo.parent), reverse=True):  # `.xmp` before `.XMP`
                self._names[fold_name(Path(name).stem)].append(name)
            self._folder = photo.parent
        for stem in (photo.name, photo.stem):
            alike = self._names.get(fold_name(stem), [])
            found = [name for name in alike if _is_sidecar(name) and Path(name).stem == stem]
            if not found:
                continue
            if stem == photo.stem:
                others = [name for name in alike if name != photo.name and _is_picture(name)]
                if others or _is_raw(photo.name):
                    of = others[0] if others else "a RAW file"
                    raise LeftAlone(f"it would hide {found[0]}, which is of {of} too")
            return photo.with_name(found[0])
        return photo.with_name(f"{photo.name}.xmp")


def write_sidecars(
    folder: Path,
    found: Iterable[tuple[str, Sequence[str]]],
    root: Tag,
    *,
    dry_run: bool,
    show: Callable[[Change], None],
) -> Counter[str]:
    """Writes found labels of photos, named relative to `folder`, as tags below `root`.

    Photos that no longer exist are ignored. Calls `show` for each change; returns fields of
    `Totals`.
    """
    counts = Counter[str]()
    finder = SidecarFinder()
    for name, labels in found:
        location = f"{folder}/{name}"
        own = [(*root, label.translate(_SEPARATORS)) for label in labels]
        try:
            if location != os.path.realpath(location):
                raise ValueError("the photo is a link, or in a linked folder")
            if not os.path.exists(location):
                continue
            path = finder.find(photo := Path(location))
            change = retag(path, photo, partial(_replace, own), dry_run=dry_run)
        except LeftAlone as reason:
            logger.warning("%s: no sidecar was written: %s", name, reason)
            counts["left_alone"] += 1
        except (OSError, ValueError) as error:
            logger.error("%s: its sidecar was not written: %s", name, error)
            counts["unwritten"] += 1
        else:
            found_names = {fold_name(tag[-1]) for tag in own}.union(map(fold_name, change.removed))
            counts["rejected"] += sum(fold_name(tag) in found_names for tag in change.rejected)
            counts["sidecars"] += change.is_changed
            if change.is_changed:
                show(change)
    return counts


def _replace(
    own: Sequence[Tag], earlier: Sequence[Tag], rejected: Sequence[str]
) -> tuple[Sequence[Tag], Sequence[str]]:
    del earlier
    return own, rejected


def list_sidecars(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the sidecars below a folder that may have own tags, in order, and their photos."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(filter(_is_sidecar, files)):
            with contextlib.suppress(OSError):
                if _MARK not in read_photo(Path(parent, name), _MAX_BYTES):
                    continue
            stem = Path(name).stem
            photos = [other for other in files if Path(other).stem == stem and _is_picture(other)]
            yield Path(parent, name), Path(parent, photos[0] if photos else stem)


def retag(path: Path, photo: Path, choose: Choose, *, dry_run: bool = False) -> Change:
    """Changes the own tags of a sidecar; makes a new one, and deletes one with nothing else.

    Raises LeftAlone, and OSError or ValueError for a file that must be left as it is.
    """
    status = path.lstat() if os.path.lexists(path) else None
    packet = Packet(b"" if status is None else _load(path, status))
    before, state = packet.render(), read_state(packet)
    rejected = find_rejected(state)
    deleted = set(map(fold_name, rejected))
    kept = [tag for tag in state.written if fold_name(tag[-1]) not in deleted]
    wanted, refused = choose(kept, rejected)
    new = state
    if wanted or state.written or state.copied or refused != state.rejected:
        inside, outside = read_user_tags(packet, READ_ONLY), read_embedded(photo)
        tags = UserTags(inside.trees + outside.trees, outside.flat)
        new = merge(state, tags, wanted, refused)
        write_state(packet, new)
    content, is_deleted = packet.render(), status is not None and packet.is_empty()
    if is_changed := content != before:
        if status is not None and not status.st_mode & _WRITABLE:
            raise LeftAlone(f"{path.name} is read-only")
        if not dry_run and is_deleted:
            path.unlink()
        elif not dry_run:
            replace_file(path, content, path.with_name(_STAGING), keep=status is not None)
    old, names = ([tag[-1] for tag in s.written] for s in (state, new))
    added = tuple(name for name in names if name not in old)
    removed = tuple(name for name in old if name not in names)
    return Change(str(path), tuple(names), new.rejected, added, removed, is_changed, is_deleted)


def _load(path: Path, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    content = read_photo(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return content


def _is_sidecar(name: str) -> bool:
    return name.lower().endswith(".xmp")


def _is_picture(name: str) -> bool:
    is_other = Path(name).suffix.lower() in _OTHER_PICTURES
    return is_photo_name(name) is not False or is_other or _is_raw(name)


def _is_raw(name: str) -> bool:
    return RAW_ENDING.fullmatch(Path(name).suffix.lower()) is not None
