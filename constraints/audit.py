"""Looks every pinned package up among the known advisories.

In: the constraint files beside this one. Out: exit code 1 and a line for each advisory; where the
advisory service cannot be reached, a message and exit code 0, so that work without a network goes
on; any other failure of pip-audit is exit code 1. `make lint` runs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_SECONDS = 120
# pip-audit wants hashes of all packages of a call, or of none.
FILES = ([_FOLDER / "dev.txt"], sorted({*_FOLDER.glob("*.txt")} - {_FOLDER / "dev.txt"}))
# OSV covers all indices; pinned packages need no resolving.
_AUDIT = ("--vulnerability-service", "osv", "--no-deps", "--disable-pip", "--timeout", "5",
          "--progress-spinner", "off", "--format", "json")  # fmt: skip


def list_advisories(packages: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each advisory in packages of pip-audit's JSON, without repetition."""
    lines = {
        f"{package['name']} {package['version']}: {advisory['id']}, "
        f"fixed in {', '.join(advisory['fix_versions']) or 'no version'}"
        for package in packages
        for advisory in package.get("vulns", ())
    }
    return sorted(lines)


def audit(files: list[Path]) -> dict[str, Any] | None:
    """Returns pip-audit's report on some constraint files, None where it could not ask.

    Exits with a line if pip-audit is not there or fails for another reason.
    """
    named = [argument for file in files for argument in ("--requirement", str(file))]
    command = [sys.executable, "-m", "pip_audit", *_AUDIT, *named]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return None
    except json.JSONDecodeError:
        reason = done.stderr.strip().rpartition("\n")[2]
        if re.search(r"onnect|[Tt]ime(d )?out", reason):
            return None
        sys.exit(f"audit: pip-audit failed: {reason}: make check installs it")
    return report


def main() -> None:
    """Audits every file; two that pin the same package agree, so one look at each suffices."""
    reports = [audit(files) for files in FILES]
    packages = [package for report in reports if report for package in report["dependencies"]]
    advisories = list_advisories(packages)
    sys.stdout.write("".join(f"audit: {line}\n" for line in advisories))
    sys.stdout.write(f"audit: {len(packages)} packages, {len(advisories)} advisories\n")
    if None in reports:
        sys.stdout.write("audit: files were skipped, the advisory service cannot be reached\n")
    sys.exit(bool(advisories))


if __name__ == "__main__":
    main()
