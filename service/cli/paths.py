"""Paths: the files and folders that a command is given.

In: texts from the command line. Out: paths, and the photos that they stand for. An empty text is
no path: it is what an unset variable of a shell leaves, and `Path` would take it for the current
folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer


def read_path(text: str) -> Path:
    """Returns the path that a text names.

    Raises:
        typer.BadParameter: it is empty.
    """
    return Path(refuse_empty(text))


def refuse_empty(text: str) -> str:
    """Returns the text as it is.

    Raises:
        typer.BadParameter: it is empty.
    """
    if not text:
        raise typer.BadParameter("it is empty")
    return text


def find_given_photos(paths: Sequence[Path]) -> list[Path]:
    """Returns the files, and the photos of the folders; says on stderr what else these hold.

    Raises:
        StartError: a folder contains no photos.
    """
    from service.images.folders import (  # `--help` does without Pillow
        describe_left_out,
        find_photos,
    )

    found, left_out = find_photos(paths)
    if left_out:
        sys.stderr.write(f"{describe_left_out(left_out)}\n")
    return found
