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
        for link in folder.glob(f"{owner}-*"):
            _remove(link)
        # By name of the content.
        self._mapped = weakref.WeakValueDictionary[str, NDArray[np.generic]]()
        self._lock = Lock()

    def share(self, array: ArrayT) -> ArrayT:
        """Returns an array of the same content that all processes have in the same memory.

        A small array is returned as it is, and also a large one if the folder is full.
        """
        if array.nbytes < _MIN_BYTES:
            return array
        with self._lock:
            name = _name(array)
            mapped = self._mapped.get(name)
            if mapped is None:
                mapped = self._map(name, array)
                if mapped is None:
                    return array
                self._mapped[name] = mapped
            return mapped  # type: ignore[return-value]

    def _map(self, name: str, array: NDArray[np.generic]) -> NDArray[np.generic] | None:
        content, link = self._folder / name, self._folder / f"{self._owner}-{next(_numbers)}-{name}"
        try:
            while not _add_link(content, link):
                # Removed with the links, if this process is killed.
                with NamedTemporaryFile(dir=self._folder, prefix=f"{self._owner}-new-") as file:
                    np.save(file, array)
                    file.flush()
                    _add_link(Path(file.name), content)
            mapped: NDArray[np.generic] = np.load(link, mmap_mode="r").view(np.ndarray)
        except OSError as error:
            logger.warning(
                "a matrix of labels is not shared between processes: %s: check the space in %s",
                *(error.strerror, self._folder.parent),
            )
            _remove(link)
            return None
        weakref.finalize(mapped, _remove, link).atexit = False
        return mapped


def _name(array: NDArray[np.generic]) -> str:
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _remove(link: Path) -> None:
    content = link.with_name(link.name.split("-", 2)[2])
    with suppress(OSError):
        link.unlink()
        if content.stat().st_nlink == 1:
            content.unlink()


def _add_link(old: Path, new: Path) -> bool:
    """Returns whether there was a file to link; an existing one of the same name is as good."""
    try:
        os.link(old, new)
    except FileExistsError:
        pass
    except FileNotFoundError:
        return False
    return True
