"""Commands end with one line on Ctrl+C and without their extra."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Blocks until the signal. Shells start background jobs with SIGINT ignored, which these tests would
# inherit.
_WAITS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from models.commands import run_command
def main():
    print("runs", flush=True)
    signal.pause()
run_command(main)
"""


def test_interrupted_command_prints_one_line() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"runs\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"stopped\n")


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("export", "onnx", "[export]"),
        ("models.evaluate", "torch", "[export]"),
        ("models.train", "filelock", "[train]"),
        ("models.train_open", "filelock", "[train]"),
    ],
)
def test_command_names_its_missing_extra_in_one_line(
    tmp_path: Path, command: str, missing: str, extra: str
) -> None:
    hide = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == {missing!r} else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
    (tmp_path / "sitecustomize.py").write_text(hide)
    done = run(command, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {missing} is missing: pip install ")
    assert extra in line


def test_command_runs_with_its_extra(tmp_path: Path) -> None:
    done = run("models.train", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def run(command: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command's `--help` with modules of a folder before all others."""
    return subprocess.run(
        [sys.executable, "-m", command, "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
