"""Paths: the files and folders that a command is given.

In: texts from the command line. Out: paths. An empty text is no path: it is what an unset variable
of a shell leaves, and `Path` would take it for the current folder.
"""

from __future__ import annotations

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
