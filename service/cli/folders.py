"""Temporary folders, which the next start removes if their owner was killed."""

import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import gettempdir, mkdtemp
from typing import NamedTuple

_PREFIX = "ml-decoder-run-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LOCK_FILE = ".lock"

logger = logging.getLogger(__name__)


class Folder(NamedTuple):
    """A folder in use until all processes that were forked since have closed its lock.

    A lock, because process ids mean nothing in another container with the same folders.
    """

    path: str
    lock: int  # file descriptor

    def leave(self) -> None:
        """Closes the lock, and removes the folder unless another process has it open."""
        os.close(self.lock)
        _remove_unused(self.path)


@contextmanager
def make_folder(parent: str | None = None) -> Iterator[Folder]:
    """Removes folders that killed processes left in `parent`, then yields a new one."""
    parent = parent or gettempdir()
    remove_left(parent)
    path, lock = "", -1
    while not os.path.isdir(path):  # another start may remove it before it is locked
        path = mkdtemp(prefix=_PREFIX, dir=parent)
        with suppress(FileNotFoundError):
            lock = _lock(path)
    try:
        yield Folder(path, lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_left(parent: str | None = None) -> None:
    """Removes the folders of this user in `parent` that no process uses."""
    with suppress(OSError), os.scandir(parent or gettempdir()) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                _remove_unused(entry.path)


def _remove_unused(path: str) -> None:
    with suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        lock = _lock(path, fcntl.LOCK_NB)
        try:
            shutil.rmtree(path)
            logger.info("removed the folder of a killed process", extra={"folder": path})
        finally:
            os.close(lock)


def _lock(path: str, flags: int = 0) -> int:
    """Returns the descriptor of a folder's locked file. Raises `OSError` if another has it."""
    # Not the folder itself: locks of folders on NFS are not seen by other machines.
    lock = os.open(os.path.join(path, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
    except OSError:  # or the file system has no locks: then no process removes the folder
        if flags:
            os.close(lock)
            raise
    return lock
