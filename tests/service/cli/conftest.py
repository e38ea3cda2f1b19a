"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from service.cli import commands as cli

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
