"""Shared by the commands of `models` and `export`: exit codes, and one-line errors.

Imports nothing that an extra installs.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import NoReturn, ParamSpec

P = ParamSpec("P")

_EXIT_MISTAKE = 2
_EXIT_INTERRUPTED = 130  # the shells' code for SIGINT


class RequestError(Exception):
    """A mistake in a request, such as a file that cannot be read; its message is one line."""


def run_command(main: Callable[[], int]) -> NoReturn:
    """Exits with a command's code; Ctrl+C prints one line instead of a traceback."""
    try:
        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        code = _EXIT_INTERRUPTED
    sys.exit(code)


def command(work: Callable[P, None]) -> Callable[P, int]:
    """Makes a function return 0, or print one line and return 2 for a mistake or a file error."""

    @wraps(work)
    def main(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            work(*args, **kwargs)
        except (RequestError, OSError) as error:
            sys.stderr.write(f"error: {error}\n")
            return _EXIT_MISTAKE
        return 0

    return main


def need_extra(advice: str, *modules: str) -> None:
    """Exits with `advice` if `python -m` starts a package and a module of its extra is missing.

    Other imports of the package are not affected: `python -m` sets argv[0] to "-m" while it looks
    for the module to run.
    """
    missing = [name for name in modules if sys.argv[0] == "-m" and find_spec(name) is None]
    if missing:
        sys.stderr.write(f"error: {missing[0]} is missing: {advice}\n")
        sys.exit(_EXIT_MISTAKE)
