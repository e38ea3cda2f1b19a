"""The entry: `python -m service`, the same as the command `ml-decoder`.

In: the command line. Out: its exit code. Next: `cli/commands.py`.
"""

from __future__ import annotations

import os
import signal

from service.cli.importing import importing_for_good


def main() -> None:
    """Imports the commands and runs the one that is asked for."""
    _end_on_sigterm()
    with importing_for_good():
        from service.cli.commands import main as run
    run()


def _end_on_sigterm() -> None:
    """Lets SIGTERM end the first process of a container too, with the code of any other.

    Linux spares it signals that it has no handler for, and the server's own comes only after the
    imports, which take seconds.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


if __name__ == "__main__":
    main()
