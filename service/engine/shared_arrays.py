"""Read-only arrays in files that several processes map: the memory has each content once.

A file is named by its content. Each process that uses it has a hard link of its own, so its last
user removes it, even if others were killed.
"""

import hashlib
import itertools
import logging
import os
import weakref
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# Of smaller arrays a copy costs less than a file descriptor for as long as they live.
_MIN_BYTES = 2**20

_numbers = itertools.count()

ArrayT = TypeVar("ArrayT", bound=NDArray[np.generic])

logger = logging.getLogger(__name__)


class SharedArrays:
    """The arrays of one process in a folder; thread-safe. `owner` is the process's number there.

    An earlier process of the same number must have ended: its links are removed.
    """

    def __init__(self, folder: Path, owner: int) -> None:
        self._folder, self._owner = folder, owner
        for left in folder.glob(f"{owner}-*"):
            self._remove(left)
        # By id of the array; None if there was no space.
        self._links: dict[int, Path | None] = {}
        self._mapped: weakref.WeakValueDictionary[str, NDArray[np.generic]]
        self._mapped = weakref.WeakValueDictionary()  # by name of the content
        self._lock = Lock()

    def share(self, array: ArrayT) -> ArrayT:
        """Returns an array of the same content that all processes have in the same memory.

        A small array is returned as it is, and also a large one if the folder is full.
        """
        if array.nbytes < _MIN_BYTES:
            return array
        with self._lock:
            name = _name(array)
            found = self._mapped.get(name)
            if found is None:
                link = self._link(name, array)
                if link is None:
                    return array
                found = self._mapped[name] = _map(link)
                self._keep(found, link)
            return found  # type: ignore[return-value]

    def publish(self, array: NDArray[np.generic]) -> Path | None:
        """Returns the file of an array that lives on unchanged; None if the folder is full."""
        with self._lock:
            if id(array) not in self._links:
                self._keep(array, self._link(_name(array), array))
            return self._links[id(array)]

    def _keep(self, array: NDArray[np.generic], link: Path | None) -> None:
        self._links[id(array)] = link
        weakref.finalize(array, self._forget, id(array)).atexit = False

    def _forget(self, number: int) -> None:
        # Without the lock: an array may be freed within it.
        if link := self._links.pop(number):
            self._remove(link)

    def _link(self, name: str, array: NDArray[np.generic]) -> Path | None:
        content, link = self._folder / name, self._folder / f"{self._owner}-{next(_numbers)}-{name}"
        try:
            while not _add_link(content, link):
                # Removed with the links, if this process is killed.
                with NamedTemporaryFile(dir=self._folder, prefix=f"{self._owner}-new-") as file:
                    np.save(file, array)
                    file.flush()
                    _add_link(Path(file.name), content)
        except OSError as error:
            logger.warning(
                "a matrix of labels is not shared between processes: %s: check the space in %s",
                *(error.strerror, self._folder.parent),
            )
            return None
        return link

    def _remove(self, link: Path) -> None:
        content = _find_content(link)
        with suppress(OSError):
            link.unlink()
            if content.stat().st_nlink == 1:
                content.unlink()


class ArrayReader:
    """Reads arrays that other processes have published; thread-safe."""

    def __init__(self) -> None:
        self._read: dict[Path, NDArray[np.generic]] = {}  # by content
        self._lock = Lock()

    def read(self, link: Path) -> NDArray[np.generic]:
        """Returns the array of a link, read-only, the same one for all links of a content.

        Raises OSError if its process has removed it.
        """
        content = _find_content(link)
        with self._lock:
            if content not in self._read:
                array = _map(link)
                # Without those that no process uses any more.
                self._read = {path: kept for path, kept in self._read.items() if path.exists()}
                self._read[content] = array
            return self._read[content]


def _name(array: NDArray[np.generic]) -> str:
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _find_content(link: Path) -> Path:
    return link.with_name(link.name.split("-", 2)[2])


def _add_link(old: Path, new: Path) -> bool:
    """Returns whether there was a file to link; an existing one of the same name is as good."""
    try:
        os.link(old, new)
    except FileExistsError:
        pass
    except FileNotFoundError:
        return False
    return True


def _map(path: Path) -> NDArray[np.generic]:
    found: NDArray[np.generic] = np.load(path, mmap_mode="r")
    if found.nbytes < _MIN_BYTES:
        found = np.array(found)
        found.flags.writeable = False
    return found.view(np.ndarray)
