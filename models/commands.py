"""Shared by the commands of `models` and `export`: exit codes, and one-line errors.

Imports nothing that an extra installs.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

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


def report_mistakes(work: Callable[[], None]) -> int:
    """Returns 0, or prints one line and returns 2 for a mistake or a file error."""
    try:
        work()
    except (RequestError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _EXIT_MISTAKE
    return 0


def need_extra(advice: str, *modules: str) -> None:
    """Exits with `advice` if `python -m` starts a package and a module of its extra is missing.

    Other imports of the package are not affected: `python -m` sets argv[0] to "-m" while it looks
    for the module to run.
    """
    missing = [name for name in modules if sys.argv[0] == "-m" and find_spec(name) is None]
    if missing:
        sys.stderr.write(f"error: {missing[0]} is missing: {advice}\n")
        sys.exit(_EXIT_MISTAKE)
