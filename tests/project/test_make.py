"""`make serve` with a stand-in for the installed command."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMAND = """#!/bin/sh
trap 'echo ended; exit' TERM
echo "$ML_DECODER_PORT $*"
for second in $(seq 30); do sleep 1 & wait; done
"""


def test_kill_of_make_ends_the_service(tmp_path: Path) -> None:
    command, installed = tmp_path / "bin/ml-decoder", tmp_path / ".installed"
    command.parent.mkdir()
    command.write_text(_COMMAND)
    command.chmod(0o755)
    (command.parent / "python").symlink_to(sys.executable)
    installed.touch()
    os.utime(installed, (time.time() + 60,) * 2)  # newer than what it is made from
    make = ["make", "--silent", "serve", f"SERVE={tmp_path}", "PORT=8123"]
    with subprocess.Popen(make, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "8123 serve\n"
        run.terminate()
        assert run.communicate(timeout=20)[0] == "ended\n"
