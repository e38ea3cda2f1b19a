"""The entry ends on SIGTERM while it imports, as the first process of a container too; SIGHUP."""

import sys
from functools import partial
from subprocess import run

import pytest

_FIRST = ("unshare", "--map-root-user", "--pid", "--fork")
# The import of the commands, which is the long one, is where the signal comes.
_PROGRAM = """
import os, signal, sys

class Signaller:
    def find_spec(self, name, path=None, target=None):
        if name == "service.cli.commands":
            os.kill(os.getpid(), getattr(signal, sys.argv[-1]))
            raise SystemExit("it went on")

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
from service.cli.__main__ import main
sys.meta_path.insert(0, Signaller())
main()
"""


_run = partial(run, capture_output=True, text=True)


def _can_be_first() -> bool:
    try:
        return _run([*_FIRST, "true"]).returncode == 0
    except FileNotFoundError:  # of util-linux
        return False


needs_namespaces = pytest.mark.skipif(
    not _can_be_first(), reason="no process namespaces can be made here"
)


@pytest.mark.parametrize(
    ("prefix", "code"), [pytest.param(_FIRST, 143, marks=needs_namespaces), ((), -15)]
)
def test_process_ends_on_sigterm_during_imports(prefix: tuple[str, ...], code: int) -> None:
    done = _run([*prefix, sys.executable, "-c", _PROGRAM, "SIGTERM"])
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("command", "went_on"), [("serve", True), ("predict", False)])
def test_only_serve_ignores_sighup_during_imports(command: str, went_on: bool) -> None:
    done = _run([sys.executable, "-c", _PROGRAM, command, "SIGHUP"])
    assert (done.returncode, done.stderr) == ((1, "it went on\n") if went_on else (-1, ""))
