"""The entry: `python -m service`, the same as the command `ml-decoder`.

In: the command line. Out: its exit code. Next: `cli/commands.py`.
"""

from __future__ import annotations

from service.cli.importing import importing_for_good


def main() -> None:
    """Imports the commands and runs the one that is asked for."""
    with importing_for_good():
        from service.cli.commands import main as run
    run()


if __name__ == "__main__":
    main()
