"""The work of `ml-decoder get`, which starts it by name with a request in JSON."""

import sys
from pathlib import Path

from export.__main__ import report
from models.commands import run_command


def main() -> int:
    """Returns 0, 1 if photos were left out, or 2 without a bundle."""

    def build(left_out: set[Path]) -> None:
        from export.towers.build import TowersRequest, build_bundle

        build_bundle(TowersRequest.model_validate_json(sys.argv[1]), left_out)

    return report(build)


if __name__ == "__main__":
    run_command(main)
