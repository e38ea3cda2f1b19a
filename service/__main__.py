"""The entry: `python -m service`, the same as the command `ml-decoder`.

In: the command line. Out: its exit code. Next: `cli/commands.py`.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Imports the commands and runs the one that is asked for."""
    # What importing makes stays: to search it for garbage would take a tenth of the start.
    gc.disable()
    from service.cli.commands import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
