"""Temporary folders, which the next start removes if their owner was killed."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import gettempdir, mkdtemp
from typing import NamedTuple

_PREFIX = "ml-decoder-run-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
# Not the folder itself: locks of folders on NFS are not seen by other machines.
_LOCK_FILE = ".lock"


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
    remove_left(parent)
    path, lock = "", -1
    while not os.path.isdir(path):  # another start may remove it before it is locked
        path = mkdtemp(prefix=_PREFIX, dir=parent)
        with suppress(FileNotFoundError):
            lock = os.open(os.path.join(path, _LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o600)
            with suppress(OSError):  # a file system without locks: no other process removes it
                fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield Folder(path, lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_left(parent: str | None = None) -> None:
    """Removes the folders of this user in `parent` that no process uses."""
    with suppress(OSError), os.scandir(parent or gettempdir()) as entries:
        for entry in entries:
            is_folder = _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            if is_folder and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                _remove_unused(entry.path)


def _remove_unused(path: str) -> None:
    with suppress(OSError), open(os.path.join(path, _LOCK_FILE), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
