"""The entry ends on SIGTERM while it imports, as the first process of a container too."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FIRST = ("unshare", "--map-root-user", "--pid", "--fork")
# The import of the commands, which is the long one, is where the signal comes.
_PROGRAM = """
import os, signal, sys

class Signaller:
    def find_spec(self, name, path=None, target=None):
        if name == "service.cli.commands":
            os.kill(os.getpid(), signal.SIGTERM)
            raise SystemExit("it went on")

from service.cli.__main__ import main
sys.meta_path.insert(0, Signaller())
main()
"""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _can_be_first() -> bool:
    try:
        return _run(*_FIRST, "true").returncode == 0
    except FileNotFoundError:  # of util-linux
        return False


@pytest.mark.skipif(not _can_be_first(), reason="no process namespaces can be made here")
def test_first_process_of_a_container_ends_on_sigterm_during_imports() -> None:
    done = _run(*_FIRST, sys.executable, "-c", _PROGRAM)
    assert (done.returncode, done.stderr) == (143, "")


def test_other_process_ends_on_sigterm_during_imports() -> None:
    done = _run(sys.executable, "-c", _PROGRAM)
    assert (done.returncode, done.stderr) == (-15, "")
