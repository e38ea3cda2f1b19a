"""The command line in this process."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from service.cli import commands as cli
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line; returns exit code, stdout and stderr."""
    monkeypatch.setenv("ML_DECODER_DEVICE", "cpu")
    monkeypatch.setenv("COLUMNS", "200")

    def run_main(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ml-decoder", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run_main


@pytest.fixture
def run_open(run: Run, monkeypatch: pytest.MonkeyPatch, open_bundle: Bundle, tmp_path: Path) -> Run:
    """The same, with the open bundle and a store of its own."""
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(open_bundle.path))
    monkeypatch.setenv("ML_DECODER_LABEL_STORE", str(tmp_path / "labels.db"))
    return run


@pytest.fixture
def run_learning(run_open: Run, monkeypatch: pytest.MonkeyPatch, learning_bundle: Bundle) -> Run:
    """The same, with a bundle that has a background."""
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(learning_bundle.path))
    return run_open


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(make_photo())
    return path


def assert_refused(run: Run, reason: str, *arguments: object) -> None:
    """Checks that a command fails with one line that contains `reason`."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def run_without(
    modules: Sequence[str], *commands: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Runs commands one after the other in a Python that lacks modules; 99 if codes differ."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys({list(modules)}))
from service.cli.__main__ import main
codes = []
for command in {list(commands)}:
    sys.argv = ["ml-decoder", *command]
    try:
        main()
    except SystemExit as stopped:
        codes.append(stopped.code)
sys.exit(max(codes) if min(codes) == max(codes) else 99)
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
