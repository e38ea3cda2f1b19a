"""`make` with other Pythons, without `venv`, and in folders with spaces."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="no make")


def run_make(folder: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MAKE), "-f", str(MAKEFILE), *arguments],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
    )


def write_command(file: Path, script: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("name", ["python3", "python3.12", "python3.13"])
def test_every_supported_python_is_found_and_a_broken_one_skipped(
    tmp_path: Path, name: str
) -> None:
    # pyenv has a shim for every installed version, chosen or not.
    write_command(tmp_path / "bin" / "python3.11", "exit 127")
    python = write_command(tmp_path / "bin" / name, f'exec "{sys.executable}" "$@"')
    done = run_make(tmp_path, "-n", ".venv-new/bin/python", path=str(python.parent))
    assert f'"{python}" -m venv .venv-new' in done.stdout


def test_old_python_is_refused_by_name(tmp_path: Path) -> None:
    python = write_command(tmp_path / "bin" / "python3", "exit 1")
    done = run_make(tmp_path, ".venv-new/bin/python", path=str(python.parent))
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed; name one with PYTHON=" in done.stderr


def test_unfinished_environment_is_made_again(tmp_path: Path) -> None:
    # Debian's Python without python3-venv makes half an environment and fails.
    python = write_command(
        tmp_path / "bin" / "python3",
        'case "$1" in -m) mkdir -p "$3/bin" && : > "$3/bin/python" && test -e complete;; esac',
    )
    path = f"{python.parent}:{os.environ['PATH']}"
    arguments = (".venv-new/bin/python", f"PYTHON={python}")
    failed = run_make(tmp_path, *arguments, path=path)
    (tmp_path / "complete").touch()
    again = run_make(tmp_path, *arguments, path=path)
    assert failed.returncode != 0
    assert "-m venv .venv-new" in again.stdout
    assert again.returncode == 0


def make_checkout(folder: Path, runtime: str) -> None:
    for part in ("constraints", "client"):
        (folder / part).mkdir()
    constraints = f"constraints/serve-{runtime}.txt"
    for needed in ("pyproject.toml", "client/pyproject.toml", constraints):
        (folder / needed).touch()


def test_bundle_path_may_contain_spaces(tmp_path: Path) -> None:
    make_checkout(tmp_path, "cpu")
    binaries = tmp_path / ".venv-serve-cpu" / "bin"
    write_command(binaries / "python", "")
    write_command(binaries / "ml-decoder", 'echo "$1: $ML_DECODER_BUNDLE"')
    (tmp_path / ".venv-serve-cpu" / ".installed").touch()
    done = run_make(tmp_path, "serve", "BUNDLE=my models/pets", path=os.environ["PATH"])
    assert "serve: my models/pets" in done.stdout


@pytest.mark.parametrize(
    ("runtime", "device"), [("cpu", "cpu"), ("openvino", "openvino"), ("gpu", "auto")]
)
def test_serve_asks_for_the_device_of_the_runtime(
    tmp_path: Path, runtime: str, device: str
) -> None:
    make_checkout(tmp_path, runtime)
    done = run_make(tmp_path, "-n", "serve", f"RUNTIME={runtime}", path=os.environ["PATH"])
    assert f"ML_DECODER_DEVICE={device} " in done.stdout
    commands = done.stdout.replace("\\\n", "")
    files = [line.split() for line in commands.splitlines() if "pip install" in line]
    assert {"--require-hashes", f"constraints/serve-{runtime}.txt"} <= set(files[0])
    assert {"--no-deps", "--no-build-isolation"} <= set(files[1])


def test_serve_makes_a_model_by_name_first(tmp_path: Path) -> None:
    make_checkout(tmp_path, "cpu")
    arguments = ("-n", "serve", "MODEL=siglip2-base", "FROM=my files")
    done = run_make(tmp_path, *arguments, path=os.environ["PATH"])
    out = "bundles/siglip2-base"
    assert f'get "siglip2-base" --out "{out}" --from "my files"\n' in done.stdout
    assert f'ML_DECODER_BUNDLE="{out}"' in done.stdout
