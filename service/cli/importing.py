"""Importing: what a command needs is imported when the command is asked for.

In: import statements. Out: modules, made without a look for garbage among them. Next:
`commands.py`, whose commands each import their own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_for_good() -> Iterator[None]:
    """Searches for no garbage within: what imports make stays, and the search takes a tenth."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
