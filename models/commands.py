"""What all commands of `models` and `export` have in common: how they end.

In: a command's function, or what its extra brings. Out: a process that ends with one line and a
status, where Python would print a traceback. It imports nothing that an extra brings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

_EXIT_REFUSED = 2
_EXIT_STOPPED = 130  # as shells call a program that Ctrl+C ended


def run_command(main: Callable[[], int]) -> NoReturn:
    """Ends the process with a command's exit code; one that Ctrl+C stops says so in one line."""
    try:
        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        code = _EXIT_STOPPED
    sys.exit(code)


def need_extra(advice: str, *modules: str) -> None:
    """Ends a command, before its own imports do, where its extra is not installed.

    Nothing happens to who imports the package: it is `python -m` alone that calls itself so while
    it looks for the module that it is to run.

    Args:
        advice: what to install.
        modules: some that the extra brings.
    """
    missing = [name for name in modules if sys.argv[0] == "-m" and find_spec(name) is None]
    if missing:
        sys.stderr.write(f"error: {missing[0]} is missing: {advice}\n")
        sys.exit(_EXIT_REFUSED)
