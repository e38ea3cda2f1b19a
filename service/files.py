"""Files that appear whole or not at all."""

import os
import shutil
from functools import partial
from pathlib import Path


def replace_file(
    path: Path, content: bytes, staging: str = "", *, keep: bool = False, mode: int = 0o666
) -> None:
    """Writes a file durably, through one called `staging` in its folder; a link is replaced.

    It gets mode, times and extended attributes of the file that is there, with `keep` also its
    owner, which may raise PermissionError; a new file gets `mode`, less the umask.
    """
    staged = path.with_name(staging or f".ml-decoder.{os.getpid()}.tmp")
    staged.unlink(missing_ok=True)  # of a run that was killed; a link is not followed
    try:
        with open(staged, "xb", opener=partial(os.open, mode=mode)) as file:
            if path.is_file() and not path.is_symlink():
                if keep:
                    _copy_owner(path, file.fileno())
                shutil.copystat(path, staged)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _copy_owner(path: Path, file: int) -> None:
    old = path.stat()
    try:
        os.fchown(file, old.st_uid, old.st_gid)
    except PermissionError as error:
        reason = f"it belongs to user {old.st_uid}: run the command as that user"
        raise PermissionError(error.errno, reason, str(path)) from error
