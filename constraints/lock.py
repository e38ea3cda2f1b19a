"""Resolves some extras of this project and prints every package that they need, pinned.

In: the names of extras, on the command line. Out: on standard output, a constraint file
that names packages and versions alone: neither an index nor a path of the machine where it
was made. `make lock` writes the files beside this one with it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_OWN = {"ml-decoder-serve", "ml-decoder-client"}
_HEADER = "# Extras: {extras}. Written by `make lock`; do not edit.\n"


class LockError(Exception):
    """A package that cannot be pinned by version alone; the message is one line."""


def pin_packages(packages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields `name==version` for each package of pip's installation report, by name.

    Args:
        packages: the report's `install` entries; our own packages are left out.

    Raises:
        LockError: a package has a local version (`2.0+cpu`), which no public index serves.
    """
    versions = {_normalise(p["metadata"]["name"]): p["metadata"]["version"] for p in packages}
    for name, version in sorted(versions.items()):
        if name in _OWN:
            continue
        if "+" in version:
            raise LockError(f"{name} {version} is a local build")
        yield f"{name}=={version}"


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _resolve(extras: str, pip_options: list[str]) -> list[dict[str, Any]]:
    # A dry run that ignores installed packages resolves as in an empty environment,
    # without fetching the gigabytes of the CUDA wheels.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command = [*pip, "--report", "-", *pip_options, f".[{extras}]"]
    report = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    packages: list[dict[str, Any]] = json.loads(report)["install"]
    return packages


def main() -> None:
    """Prints the constraint file for `extras [pip options and more to install]`."""
    extras, *pip_options = sys.argv[1:]
    pins = "\n".join(pin_packages(_resolve(extras, pip_options)))
    sys.stdout.write(_HEADER.format(extras=extras) + pins + "\n")


if __name__ == "__main__":
    main()
