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
from typing import NamedTuple

from service.archive.embedded import read_embedded
from service.archive.tags import (
    ROOT,
    find_rejected,
    merge,
    read_state,
    read_tags,
    write_state,
)
from service.archive.xmp import Packet, Tag
from service.bundle.card import fold_name
from service.files import replace_file
from service.images.folders import read_photo
from service.images.formats import PICTURE_ENDINGS, RAW_ENDING

# darktable's history of many drawn masks takes some hundred kB.
_MAX_BYTES = 8_000_000
# One name for all: a photo's own may be as long as the file system allows.
_STAGING = ".ml-decoder.xmp.tmp"
_MAX_NAME_BYTES = 255
_SEPARATORS = str.maketrans("/|", "--")
_MARK = ROOT.encode()  # in the name of the memory's namespace too
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH

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


def find_sidecar(photo: Path, by_stem: Mapping[str, Sequence[str]]) -> Path:
    """Returns the photo's sidecar, which may not exist yet; `by_stem` has the names of its folder.

    Raises LeftAlone if a new one would hide one of several photos.
    """
    name, stem = photo.name, photo.stem
    alike = by_stem.get(stem.casefold(), ())
    if found := [n for n in by_stem.get(name.casefold(), ()) if _is_sidecar(n, name)]:
        return photo.with_name(found[0])
    is_taken = stem in by_stem.get(
        Path(stem).stem.casefold(), ()
    )  # `a.jpg` has it, not `a.jpg.png`
    if not is_taken and (found := [n for n in alike if _is_sidecar(n, stem)]):
        others = [other for other in alike if other != name and _is_picture(other)]
        if others or RAW_ENDING.fullmatch(photo.suffix.lower()):
            of = f"{others[0]} too: rename one of them" if others else "a RAW file"
            raise LeftAlone(f"it would hide {found[0]}, which is of {of}")
        return photo.with_name(found[0])
    path = photo.with_name(f"{name}.xmp")
    if len(os.fsencode(path.name)) > _MAX_NAME_BYTES:
        raise ValueError("its name would be longer than 255 bytes: rename the photo")
    return path


def group_by_stem(folder: Path) -> dict[str, list[str]]:
    """Returns the names in a folder by their stems without case; raises OSError."""
    by_stem: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(os.listdir(folder), reverse=True):  # `.xmp` before `.XMP`
        by_stem[Path(name).stem.casefold()].append(name)
    return by_stem


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
    group = lru_cache(16)(group_by_stem)
    for name, labels in found:
        location = f"{folder}/{name}"
        own = [(*root, label.translate(_SEPARATORS)) for label in labels]
        try:
            if location != os.path.realpath(location):
                raise ValueError("the photo is a link, or in a linked folder: name the real folder")
            if not os.path.exists(location):
                continue
            photo = Path(location)
            path = find_sidecar(photo, group(photo.parent))
            change = retag(path, photo, partial(_replace, own), dry_run=dry_run)
        except LeftAlone as reason:
            logger.warning("%s: no sidecar was written: %s", name, reason)
            counts["left_alone"] += 1
        except (OSError, ValueError) as error:
            logger.error("%s: its sidecar was not written: %s", name, error)
            counts["unwritten"] += 1
        else:
            counts["rejected"] += len(change.rejected)
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
        by_stem = group_by_stem(Path(parent)) if any(map(_is_sidecar, files)) else {}
        for name in sorted(filter(_is_sidecar, files)):
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                if _MARK not in read_photo(path, _MAX_BYTES):
                    continue
            alike = filter(_is_picture, by_stem[path.stem.casefold()])
            is_own = path.stem in by_stem.get(Path(path.stem).stem.casefold(), ())
            yield path, path.with_name(path.stem if is_own else next(alike, path.stem))


def retag(path: Path, photo: Path, choose: Choose, *, dry_run: bool = False) -> Change:
    """Changes the own tags of a sidecar; makes a new one from the XMP in the photo.

    Deletes one that has nothing more than that. Raises LeftAlone, and OSError or ValueError for a
    file that must be left as it is.
    """
    status = path.lstat() if os.path.lexists(path) else None
    content = b"" if status is None else _load(path, status)
    base = read_embedded(photo)
    packet = Packet(content) if content else read_embedded(photo)
    before, state = packet.render(), read_state(packet)
    deleted = find_rejected(state)
    names = set(map(fold_name, deleted))
    kept = [tag for tag in state.written if fold_name(tag[-1]) not in names]
    wanted, rejected = choose(kept, deleted)
    new = state
    if wanted or rejected or state.written or state.rejected:
        new = merge(state, read_tags(base), wanted, rejected)
        write_state(packet, new)
    after, old = packet.render(), [tag[-1] for tag in state.written]
    is_changed = after != before
    is_empty = is_changed and packet.list_properties() == base.list_properties()
    if is_changed and status is not None and not status.st_mode & _WRITABLE:
        raise LeftAlone(f"{path.name} is read-only")
    if is_changed and not dry_run:
        if is_empty:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, after, path.with_name(_STAGING), keep=status is not None)
    tags = tuple(tag[-1] for tag in new.written)
    added = tuple(name for name in tags if name not in old)
    removed = tuple(name for name in old if name not in tags)
    is_deleted = is_empty and status is not None
    return Change(str(path), tags, new.rejected, added, removed, is_changed, is_deleted)


def _load(path: Path, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    content = read_photo(path, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return content


def _is_sidecar(name: str, stem: str | None = None) -> bool:
    return name.lower().endswith(".xmp") and stem in (None, Path(name).stem)


def _is_picture(name: str) -> bool:
    ending = Path(name).suffix.lower()
    return ending in PICTURE_ENDINGS or RAW_ENDING.fullmatch(ending) is not None
