"""The command line in this process."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from service.cli import commands as cli
from tests.e2e.server_process import ROOT

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


def assert_refused(run: Run, reason: str, *arguments: object) -> None:
    """Checks that a command fails with one line that contains `reason`."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def run_without_onnx_runtime(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys; sys.modules['onnxruntime'] = None; "
        f"sys.argv = ['ml-decoder', *{arguments}]; from service.cli.__main__ import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True)
