"""`make serve` with stand-ins for Python and for the installed command."""

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
# Prints its arguments, fails for a model that is out of reach, and makes environments.
_PYTHON = """#!/bin/sh
[ "$1" = -c ] || echo "$*"
case "$*" in
    *out-of-reach) exit 2 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/ml-decoder" ;;
esac
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


def test_hub_is_asked_before_anything_is_installed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)

    def serve(*variables: str) -> str:
        make = ["make", "-j4", "--silent", "serve", f"PYTHON={python}", f"SERVE={tmp_path / 'env'}"]
        return subprocess.run([*make, *variables], cwd=ROOT, capture_output=True, text=True).stdout

    bundle, get = f"BUNDLE={tmp_path}", f"get m --out={tmp_path}"
    assert serve("MODEL=out-of-reach") == "service/cli/models.py out-of-reach\n"
    assert not (tmp_path / "env").exists()
    made = [line.rsplit(" --", 1)[0] for line in serve("MODEL=m", bundle).splitlines()]
    assert made[:2] == ["service/cli/models.py m", f"-m venv {tmp_path / 'env'}"]
    assert made[-2:] == ["get m", "serve"]
    printed = serve("MODEL=m", bundle, "FROM=a b", "LOGIT_BIAS=-1")
    assert printed == f"{get} --from=a b --logit-bias=-1\nserve\n"
    (tmp_path / "manifest.json").touch()
    assert serve("MODEL=m", bundle, "PRECISION=fp32") == f"{get} --precision=fp32\nserve\n"
    assert serve("MODEL=hf-hub:o/n", "FROM=x") == "get hf-hub:o/n --out=bundles/n --from=x\nserve\n"
