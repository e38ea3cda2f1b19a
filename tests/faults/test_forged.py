"""Mutated files, in a process that may take little memory."""

import subprocess
import sys


def test_mutated_file_is_read_or_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "tests.faults.forged", "--labels", "300", "--models", "50"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    outcomes = {line.partition(" ")[2] for line in run.stdout.splitlines()}
    label_sets = {f"pets.{suffix} read" for suffix in ("npz", "json", "csv", "txt")}
    assert outcomes >= label_sets | {"pets.npz refused", "config.json refused"}
