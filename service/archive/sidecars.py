"""XMP sidecars: found beside their photos, and rewritten whole or not at all.

`a.jpg.xmp` is the sidecar of `a.jpg`; `a.xmp` is it if there is no other and no other photo has the
stem `a`. A sidecar that cannot be changed safely is left as it is.
"""

import contextlib
import logging
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from service.archive import ROOT, Tag
from service.archive.embedded import read_embedded
from service.archive.tags import (
    MakeTags,
    State,
    begin_state,
    find_rejected,
    forget_lost,
    merge,
    read_state,
    read_tags,
    write_state,
)
from service.archive.tree import make_tags
from service.archive.xmp import Packet
from service.errors import StartError
from service.files import replace_file
from service.images.folders import read_photo
from service.images.formats import PICTURE_ENDINGS, RAW_ENDINGS

# darktable's history of many drawn masks takes some hundred kB.
_MAX_BYTES = 8_000_000
# One name for all: a photo's own may be as long as the file system allows.
_STAGING = ".ml-decoder.xmp.tmp"
_ENDINGS = (".xmp", ".XMP")
_CHANGES_SHOWN = 10
_MARK = ROOT.encode()  # in the name of the memory's namespace too
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH

Found = Iterable[tuple[str, Sequence[str]]]

logger = logging.getLogger(__name__)


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


def write_sidecars(
    folder: Path, found: Found, root: Tag, words: dict[str, Any], *, dry_run: bool
) -> tuple[Counter[str], list[Change]]:
    """Writes found labels of photos, named relative to `folder`, as tags of `make_tags`.

    Photos that no longer exist are ignored. Returns fields of `Totals` and the first ten changes.
    """
    counts, changes = Counter[str](), list[Change]()
    list_pictures = lru_cache(16)(_list_pictures)
    for name, labels in found:
        location = f"{folder}/{name}"
        try:
            if location != os.path.realpath(location):
                raise ValueError("the photo is a link, or in a linked folder: name the real folder")
            if not os.path.exists(location):
                continue
            photo = Path(location)
            path = _find_own_sidecar(photo, list_pictures)
            own = root, partial(make_tags, root, words, labels)
            change = retag(path, photo, own, dry_run=dry_run)
        except LeftAlone as reason:
            logger.warning("%s: no sidecar was written: %s", name, reason)
            counts["left_alone"] += 1
        except (OSError, ValueError) as error:
            logger.error("%s: its sidecar was not written: %s", name, error)
            counts["unwritten"] += 1
        else:
            counts["rejected"] += len(change.rejected)
            counts["sidecars"] += change.is_changed
            if change.is_changed and len(changes) < _CHANGES_SHOWN:
                changes.append(change)
    return counts, changes


def find_sidecar(photo: Path) -> Path:
    """Returns the photo's sidecar, which may not exist yet, or be of other photos too."""
    named = [photo.with_name(photo.name + ending) for ending in _ENDINGS]
    of_stem = [photo.with_name(photo.stem + ending) for ending in _ENDINGS]
    if photo.with_name(photo.stem).exists():  # `a.jpg.xmp` is of `a.jpg`, not of `a.jpg.png`
        of_stem = []
    return next(filter(os.path.lexists, (*named, *of_stem)), named[0])


def _find_own_sidecar(
    photo: Path, list_pictures: Callable[[Path], Mapping[str, list[str]]]
) -> Path:
    """Returns the photo's sidecar; raises LeftAlone if it would hide one of several photos."""
    path = find_sidecar(photo)
    if path.stem != photo.name:
        alike = list_pictures(photo.parent).get(photo.stem.casefold(), ())
        others = [f"{name} too: rename one of them" for name in alike if name != photo.name]
        if photo.suffix.lower() in RAW_ENDINGS:
            others.append(f"a RAW file: rename it to {photo.name}.xmp")
        if others:
            raise LeftAlone(f"it would hide {path.name}, which is of {others[0]}")
    return path


def _list_pictures(folder: Path) -> dict[str, list[str]]:
    """Returns the names of pictures in a folder by their stems without case; raises OSError."""
    by_stem: defaultdict[str, list[str]] = defaultdict(list)
    for name in filter(_is_picture, sorted(os.listdir(folder))):
        by_stem[Path(name).stem.casefold()].append(name)
    return by_stem


def list_sidecars(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the sidecars below a folder that may have own tags, in order, and their photos."""
    if not folder.is_dir():
        raise StartError(f"{folder} is not a folder")
    for parent, folders, files in os.walk(folder):
        folders.sort()
        photos = {Path(name).stem: name for name in filter(_is_picture, files)}
        photos |= {name: name for name in files}
        for name in sorted(files):
            path = Path(parent, name)
            if path.suffix not in _ENDINGS:
                continue
            with contextlib.suppress(OSError):
                if _MARK not in read_photo(path, _MAX_BYTES):
                    continue
            yield path, path.with_name(photos.get(path.stem, path.stem))


def retag(
    path: Path,
    photo: Path,
    own: tuple[Tag, MakeTags] | None = None,
    is_removed: Callable[[str], bool] = lambda _: False,
    *,
    dry_run: bool,
) -> Change:
    """Replaces the own tags of a sidecar, or removes some; makes one from the XMP in the photo.

    `own` are the root of tags and what makes them. Names, of tags or their labels, for which
    `is_removed` returns True no longer count as deleted by the user either. A sidecar that has
    nothing more than the photo is deleted. Raises LeftAlone, and OSError or ValueError for a file
    that must be left as it is.
    """
    status = path.lstat() if os.path.lexists(path) else None
    packet, state, embedded = read_sidecar(path, photo)
    before = packet.render()
    in_photo = read_tags(embedded)
    # What was made from the photo has nothing more than it; else nothing at all is left.
    most = embedded.list_properties() if state.of_photo else set()
    deleted = find_rejected(state, in_photo)
    names = {name: name for name in (*deleted, *(tag[-1] for tag in state.written))} | state.labels
    removed = {label for name, label in names.items() if is_removed(name) or is_removed(label)}
    rejected = [name for name in deleted if names[name] not in removed]
    left = {tag: names[tag[-1]] for tag in state.written if names[tag[-1]] not in removed}
    root, make = own or (state.root, lambda _rejected, _users: left)
    wanted = make(rejected, set())
    if own is None and not wanted:
        state = forget_lost(state)
    new = state
    if wanted or rejected or state.written or state.rejected:
        new = merge(state, in_photo, root, make, rejected)
        write_state(packet, new)
    after = packet.render()
    is_changed = after != before
    is_empty = is_changed and packet.list_properties() <= most
    if is_changed and status is not None and not status.st_mode & _WRITABLE:
        raise LeftAlone(f"{path.name} is read-only: make it writable, or leave it so")
    if is_changed and not dry_run:
        if is_empty:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, after, _STAGING, keep=True)
    tags, old = ([tag[-1] for tag in each.written] for each in (new, state))
    return Change(
        str(path),
        tags=tuple(tags),
        rejected=new.list_deleted(new.rejected),
        added=tuple(name for name in tags if name not in old),
        removed=tuple(name for name in old if name not in tags),
        is_changed=is_changed,
        is_deleted=is_empty and status is not None,
    )


def read_sidecar(path: Path, photo: Path) -> tuple[Packet, State, Packet]:
    """Returns the sidecar, or the XMP in the photo in place of one; its state; the photo's XMP.

    Raises OSError or ValueError with the reason why one of them cannot be read.
    """
    content = _load(path) if os.path.lexists(path) else b""
    embedded = read_embedded(photo)
    if not content:
        return embedded, begin_state(embedded), embedded
    packet = Packet(content)
    return packet, read_state(packet), embedded


def _load(path: Path) -> bytes:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is a link, a folder or a pipe: put a file in its place")
    content = read_photo(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return content


def _is_picture(name: str) -> bool:
    return Path(name).suffix.lower() in PICTURE_ENDINGS
