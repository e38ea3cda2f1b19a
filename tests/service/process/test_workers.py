"""How many workers a supervisor starts; `tests/faults/test_workers.py` has real ones."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from service.process.workers import Supervisor

class Ports:
    def log_serving(self):
        print("serving", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

def serve(worker):
    os.write(1, f"worker {worker.number}\\n".encode())  # one call: two start at the same time
    worker.report_ready()
    worker.link.recv()  # the supervisor's stop

def count():
    print("count", flush=True)
    return int(sys.argv[1])

Supervisor(3, Ports(), serve, count_fitting=count).run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_as_many_workers_start_as_fit_beside_the_first(fitting: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(fitting)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    first, counted, *others, last = done.stdout.splitlines()
    assert (first, counted, last) == ("worker 1", "count", "serving")
    started = range(2 if fitting == 3 else 1, fitting + 1)  # worker 1 again, for a larger share
    assert sorted(others) == [f"worker {number}" for number in started]


RELOADING = """
import multiprocessing, os, signal
from service.process.workers import NOT_RELOADED, RELOADED, Supervisor

noted = multiprocessing.get_context("fork").Semaphore(0)

class Noting(Supervisor):
    def _reload(self):
        super()._reload()
        noted.release()

class Ports:
    def log_serving(self):
        os.kill(os.getpid(), signal.SIGHUP)

def serve(worker):
    worker.report_ready()
    count = 0
    while (message := worker.link.recv()) == "reload":
        count += 1
        os.write(1, f"worker {worker.number}\\n".encode())
        if (worker.number, count) == (1, 1):  # its bundle is corrected meanwhile
            noted.acquire()
            os.kill(worker.supervisor, signal.SIGHUP)
            noted.acquire()
            worker.send(NOT_RELOADED)
            continue
        worker.send(RELOADED)
        if worker.number == 2:
            os.kill(worker.supervisor, signal.SIGTERM)

Noting(2, Ports(), serve).run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
def test_signal_during_a_reload_that_fails_is_one_more_reload() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELOADING], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["worker 1", "worker 1", "worker 2"]


def test_closed_terminal_is_noticed() -> None:
    program = (
        "import time\n"
        "from service.process.workers import has_lost_terminal\n"
        "print(has_lost_terminal(), flush=True)\n"
        "while not has_lost_terminal(): time.sleep(0.01)\n"
        "print('lost')"
    )
    ours, terminal = pty.openpty()
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, text=True) as process:
        os.close(terminal)
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        os.close(ours)
        assert process.communicate(timeout=60)[0] == "lost\n"
