"""Worker processes that share one port: forked, stopped and replaced by a supervisor.

uvicorn's `Multiprocess` does not fit. It ends the service if a worker exits with 3, our code of a
lost GPU; it restarts a worker for ever whose bundle is damaged, and cannot say why; it waits half
a second before it replaces one, which then imports for another.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from service.errors import BundleError, ServiceBroken, StartError
from service.http.telemetry.logs import name_worker
from service.scheduling.suspects import Suspects

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_KILLING_STOP = 3
_LONGEST_PAUSE_SECONDS = 30.0

# A message of a worker; any other is the reason of its end.
_READY = "ready"
# The message of the supervisor.
_STOP = "stop"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worker:
    """A worker's own side; `number` is from 1.

    The first worker of a start listens while it loads, for probes. All others listen when they are
    ready, so that no request meets one that loads.
    """

    number: int
    listens_at_once: bool
    link: Connection
    suspects: Suspects
    complete: mmap.mmap  # shared: 1 once all workers of the start have been ready

    def are_all_ready(self) -> bool:
        """Returns whether all workers of the start have been ready, at once in all workers."""
        return self.complete[0] == 1

    def report_ready(self) -> None:
        """Notes that predictions are answered."""
        self.send(_READY)

    def send(self, message: str) -> None:
        """Sends a message to the supervisor, if it still runs."""
        with suppress(OSError):
            self.link.send(message)

    def receive(self, stop: Callable[[], None]) -> bool:
        """Calls `stop` for each signal; returns False at the supervisor's end."""
        try:
            while self.link.poll():
                self.link.recv()
                stop()
        except (EOFError, OSError):
            stop()
            return False
        return True


@dataclass
class _Slot:
    """One of `count` workers: its process, or when its replacement starts."""

    number: int
    process: ForkProcess | None = None
    link: Connection | None = None
    ready: bool = False
    reason: str = ""
    failed_starts: int = 0  # one after the other
    start_at: float = 0.0  # seconds of `time.monotonic`


class Supervisor:
    """Runs `serve` in `count` forked processes.

    Forked, because a replacement then needs no imports (1.2 seconds) and shares their memory. So
    this process must have no threads.

    A worker that was ready is replaced at once; the photos of one that crashed are refused for 10
    seconds. A failure before all have been ready is a failed start. Later, a replacement that fails
    is tried again after 1, 2, 4 and up to 30 seconds, as long as another worker is ready.
    """

    def __init__(
        self, count: int, serve: Callable[[Worker], None], announce: Callable[[], None]
    ) -> None:
        """`announce` is called once, when all workers are ready."""
        self._serve = serve
        self._announce = announce
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._complete = mmap.mmap(-1, 1)
        self._suspects = Suspects(count)
        self._stops = 0

    def run(self) -> None:
        """Returns after SIGTERM or Ctrl+C, when all workers have drained.

        Raises `StartError` if a worker cannot start, `ServiceBroken` if none is left that can.
        """
        with _catch_signals() as signals:
            try:
                while not self._stops or self._list_running():
                    self._start_missing()
                    self._wait(signals)
            finally:
                for slot in self._list_running():
                    _kill(slot)

    def _list_running(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.process is not None]

    def _start_missing(self) -> None:
        for slot in self._slots:
            if slot.process is None and not self._stops and slot.start_at <= time.monotonic():
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.link, theirs = multiprocessing.Pipe()
        slot.ready, slot.reason = False, ""
        at_once = slot.number == 1 and not self._complete[0]
        worker = Worker(slot.number, at_once, theirs, self._suspects, self._complete)
        process = multiprocessing.get_context("fork").Process(
            target=self._run_worker, args=(worker,), name=f"worker {slot.number}"
        )
        # A signal between the fork and the worker's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        slot.process = process
        logger.info("worker started", extra={"worker": slot.number, "pid": process.pid})

    def _run_worker(self, worker: Worker) -> None:
        for slot in self._slots:
            if slot.link is not None:
                slot.link.close()  # else no worker would notice the supervisor's end
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        name_worker(worker.number)
        worker.suspects.watch(worker.number)
        try:
            self._serve(worker)
        except (StartError, BundleError, ServiceBroken) as error:
            _exit(worker, str(error))
        except BaseException:
            logger.exception("unexpected error in a worker")
            _exit(worker, "unexpected error: see the log")

    def _wait(self, signals: socket.socket) -> None:
        running = self._list_running()
        links = [slot.link for slot in running if slot.link is not None]
        sentinels = [slot.process.sentinel for slot in running if slot.process is not None]
        pauses = [slot.start_at for slot in self._slots if slot.process is None]
        timeout = None
        if pauses and not self._stops:
            timeout = max(0.0, min(pauses) - time.monotonic())
        found = wait([signals, *links, *sentinels], timeout)
        if signals in found:
            for _ in signals.recv(64):
                self._stop()
        for slot in running:
            self._receive(slot)
            if slot.process is not None and slot.process.sentinel in found:
                self._reap(slot)

    def _stop(self) -> None:
        self._stops += 1
        for slot in self._list_running():
            if slot.link is not None:
                with suppress(OSError):
                    slot.link.send(_STOP)
            if self._stops >= _KILLING_STOP:
                _kill(slot)

    def _receive(self, slot: _Slot) -> None:
        try:
            while slot.link is not None and slot.link.poll():
                message = slot.link.recv()
                if message == _READY:
                    slot.ready, slot.failed_starts = True, 0
                else:
                    slot.reason = message
        except (EOFError, OSError):
            slot.link = None
        if not self._complete[0] and all(each.ready for each in self._slots):
            self._complete[0] = 1
            self._announce()

    def _reap(self, slot: _Slot) -> None:
        assert slot.process is not None
        slot.process.join()
        code = slot.process.exitcode or 0
        was_ready, slot.ready = slot.ready, False
        slot.process = slot.link = None
        stack, refused = self._suspects.end(slot.number)
        if self._stops and code in (0, -signal.SIGTERM):
            return
        reason = slot.reason or _describe(code)
        if not (self._complete[0] or was_ready or self._stops):
            raise StartError(slot.reason or f"worker {slot.number} cannot start: {reason}")
        fields = {"worker": slot.number, "reason": reason}
        if stack:
            fields |= {"refused_photos": refused, "stack": stack}
        logger.error("worker ended", extra=fields)
        if was_ready or self._stops:
            return
        if not any(each.ready for each in self._slots):
            raise ServiceBroken(f"no worker can start: {reason}")
        pause = min(2.0**slot.failed_starts, _LONGEST_PAUSE_SECONDS)
        slot.failed_starts += 1
        slot.start_at = time.monotonic() + pause


def _exit(worker: Worker, reason: str) -> None:
    worker.send(reason)
    sys.stderr.flush()
    os._exit(1)  # Python's own exit could wait for a hanging GPU


def _kill(slot: _Slot) -> None:
    if slot.process is not None:
        slot.process.kill()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


@contextmanager
def _catch_signals() -> Iterator[socket.socket]:
    """Yields a socket with a byte for each SIGTERM or SIGINT."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    woken = signal.set_wakeup_fd(theirs.fileno())
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()
