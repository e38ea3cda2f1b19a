"""Files that appear whole or not at all."""

import os
import shutil
from pathlib import Path


def replace_file(path: Path, content: bytes, staging: Path, *, keep: bool = False) -> None:
    """Writes a file durably, through `staging` in the same folder.

    `keep` keeps owner, mode and extended attributes of the file that is there.
    """
    staging.unlink(missing_ok=True)  # of a run that was killed; a link is not followed
    try:
        with staging.open("xb") as file:
            if keep:
                _copy_owner(path, file.fileno())
                shutil.copystat(path, staging)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def _copy_owner(path: Path, file: int) -> None:
    old = path.stat()
    try:
        os.fchown(file, old.st_uid, old.st_gid)
    except PermissionError as error:
        reason = f"it belongs to user {old.st_uid}: run the command as that user"
        raise PermissionError(error.errno, reason, str(path)) from error
