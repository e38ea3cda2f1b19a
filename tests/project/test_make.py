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
# Writes its arguments, fails for `service/cli/models.py out-of-reach`, and makes environments.
_PYTHON = """#!/bin/sh
[ "$1" = -c ] || echo "$*"
case "$*" in
    *out-of-reach) exit 2 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/ml-decoder" ;;
esac
"""


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def test_kill_of_make_ends_the_service(tmp_path: Path) -> None:
    write_program(tmp_path / "bin/ml-decoder", _COMMAND)
    installed = tmp_path / ".installed"
    (tmp_path / "bin/python").symlink_to(sys.executable)
    installed.touch()
    os.utime(installed, (time.time() + 60,) * 2)  # newer than what it is made from
    make = ["make", "--silent", "serve", f"SERVE={tmp_path}", "PORT=8123"]
    with subprocess.Popen(make, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "8123 serve\n"
        run.terminate()
        assert run.communicate(timeout=20)[0] == "ended\n"


def serve_model(folder: Path, *variables: str) -> list[str]:
    """Returns the first words of the commands that `make -j4 serve` runs."""
    python = write_program(folder / "python", _PYTHON)
    make = ["make", "-j4", "--silent", "serve", f"PYTHON={python}", f"SERVE={folder / 'env'}"]
    done = subprocess.run([*make, *variables], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return [" ".join(line.split()[:2]) for line in done.stdout.splitlines()]


def test_hub_is_asked_before_anything_is_installed(tmp_path: Path) -> None:
    assert serve_model(tmp_path, "MODEL=out-of-reach") == ["service/cli/models.py out-of-reach"]
    assert not (tmp_path / "env").exists()
    install = ["-m venv", "-m pip", "-m pip"]
    asked = serve_model(tmp_path, "MODEL=a", f"BUNDLE={tmp_path}")
    assert asked == ["service/cli/models.py a", *install, "get a", "serve"]
    (tmp_path / "manifest.json").touch()
    assert serve_model(tmp_path, "MODEL=a", f"BUNDLE={tmp_path}") == ["get a", "serve"]
    assert serve_model(tmp_path / "b", "MODEL=a", "FROM=x") == [*install, "get a", "serve"]


def test_options_of_get_are_variables(tmp_path: Path) -> None:
    flags = ["FROM=x y", "PRECISION=fp32", "BACKGROUND=b", "LOGIT_SCALE=2", "LOGIT_BIAS=-1.5"]
    make = ["make", "-n", "serve", f"SERVE={tmp_path}", "MODEL=hf-hub:owner/name", *flags]
    done = subprocess.run(make, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    written = " ".join(done.stdout.replace("\\\n", " ").split())
    options = '--precision="fp32" --background="b" --logit-scale="2" --logit-bias="-1.5"'
    name, out = '"hf-hub:owner/name"', '--out="bundles/name"'
    assert f'get {name} {out} --from="x y" {options}' in written
