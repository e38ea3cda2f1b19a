"""Runs the Dockerfile's steps without a container engine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nginx import find_free_port

ROOT = Path(__file__).parents[2]
MOST_MB = 450


@pytest.mark.slow
def test_steps_of_the_dockerfile_make_a_small_image_that_serves() -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("this needs root and debootstrap")
    command = [sys.executable, "-m", "tests.project.try_dockerfile", "cpu"]
    done = subprocess.run(
        [*command, "--port", str(find_free_port())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    size = re.search(r"^cpu: (\d+) MB", done.stdout, re.MULTILINE)
    assert int(size[1]) < MOST_MB
