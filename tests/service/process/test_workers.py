"""How many workers start and reload; `tests/faults/test_workers.py` has real ones."""

import os
import pty
import subprocess
import sys

import pytest

from service.process import workers

PROGRAM = """
import multiprocessing, os, signal, sys
from service.process.workers import NOT_RELOADED, READY, RELOADED, Supervisor

fitting = int(sys.argv[1])
asked = multiprocessing.get_context("fork").Semaphore(0)

class Noting(Supervisor):
    def _reload(self):
        super()._reload()
        asked.release()

class Ports:
    def announce(self):
        print("serving", flush=True)
        os.kill(os.getpid(), signal.SIGHUP)

def serve(worker):
    os.write(1, f"worker {worker.number}\\n".encode())  # one call: two start at the same time
    if not counted and fitting < 3:  # this worker will start again
        os.kill(worker.supervisor, signal.SIGHUP)
        asked.acquire()
        worker.send(READY)
        signal.pause()
    worker.send(READY)
    fails = worker.number == 1
    while worker.link.recv() == "reload":
        os.write(1, f"reload {worker.number}\\n".encode())
        if fails:  # and its bundle is corrected meanwhile
            asked.acquire()
            os.kill(worker.supervisor, signal.SIGHUP)
            asked.acquire()
        worker.send(NOT_RELOADED if fails else RELOADED)
        if worker.number == fitting and not fails:
            os.kill(worker.supervisor, signal.SIGTERM)
        fails = False

counted = []

def count():
    print("count", flush=True)
    counted.append(True)
    return fitting

Noting(3, Ports(), serve, count_fitting=count).run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_as_many_workers_start_as_fit_beside_the_first_and_reload(fitting: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(fitting)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    start, _, reloads = done.stdout.partition("serving\n")
    first, counted, *others = start.splitlines()
    assert (first, counted) == ("worker 1", "count")
    # Worker 1 again: SIGHUP was sent again before it failed.
    assert reloads.splitlines() == [f"reload {number}" for number in (1, *range(1, fitting + 1))]
    started = range(2 if fitting == 3 else 1, fitting + 1)  # worker 1 again, for a larger share
    assert sorted(others) == [f"worker {number}" for number in started]


def test_closed_terminal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = pty.openpty()
    monkeypatch.setattr(os, "isatty", lambda _, is_terminal=os.isatty: is_terminal(terminal))
    monkeypatch.setattr(workers, "_HAS_TERMINAL", os.isatty(0))
    assert not workers.has_lost_terminal()
    os.close(ours)
    assert workers.has_lost_terminal()
    os.close(terminal)
