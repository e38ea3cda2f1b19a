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
                old = path.stat()
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
                shutil.copystat(path, staging)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
