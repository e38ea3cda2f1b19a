"""Files that appear whole or not at all, and tables as spreadsheets write them."""

import csv
import io
import os
import shutil
from collections.abc import Iterator
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


def decode_text(content: bytes) -> str:
    r"""Returns text with `\n` at the ends of lines. Raises ValueError if it is not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"Line {line} is not UTF-8: save the file as UTF-8") from error
    # Not `str.splitlines`, for which a form feed ends a line too.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_rows(content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a CSV that are not empty, with their line numbers; cells are stripped.

    Raises ValueError, with the line and the reason, for other content.
    """
    text = decode_text(content)
    first = text.lstrip().partition("\n")[0]
    # Spreadsheets write semicolons where a comma is a decimal point.
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield rows.line_num, cells
    except csv.Error as error:
        raise ValueError(f"Line {rows.line_num} is not valid CSV: {error}") from error


def _copy_owner(path: Path, file: int) -> None:
    old = path.stat()
    try:
        os.fchown(file, old.st_uid, old.st_gid)
    except PermissionError as error:
        reason = f"it belongs to user {old.st_uid}: run the command as that user"
        raise PermissionError(error.errno, reason, str(path)) from error
