"""Temporary folders of killed processes; `tests/faults/test_workers.py` has real workers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from service.cli.folders import make_folder, remove_left

PROGRAM = """
import os, signal, sys
from service.cli.folders import make_folder

with make_folder(sys.argv[1]) as folder:
    forked = os.fork()
    if forked:
        print(forked, folder.path, flush=True)
    signal.pause()
"""


def test_folder_goes_with_the_last_process_that_uses_it_at_the_next_start(tmp_path: Path) -> None:
    photos, link = tmp_path / "ml-decoder-run-photos", tmp_path / "ml-decoder-run-aaaaaaaa"
    photos.mkdir()
    (photos / "photo").touch()
    link.symlink_to(photos)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        forked, path = started.stdout.readline().split()
        for process in (started.pid, int(forked)):
            with make_folder(str(tmp_path)) as ours:
                assert {*map(str, tmp_path.iterdir())} == {path, ours.path, str(photos), str(link)}
            os.kill(process, signal.SIGKILL)
            started.wait()
        started.stdout.read()  # until the forked process has ended too
    remove_left(str(tmp_path))
    assert {*tmp_path.iterdir()} == {photos, link}
    assert (photos / "photo").exists()
