"""Worker processes that share one port: forked, stopped and replaced by a supervisor.

uvicorn's `Multiprocess` does not fit. It ends the service if a worker exits with 3, our code of a
lost GPU; it restarts a worker for ever whose bundle is damaged, and cannot say why; it waits half
a second before it replaces one, which then imports for another.
"""

from __future__ import annotations

import logging
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

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_KILLING_STOP = 3
_LONGEST_PAUSE_SECONDS = 30.0

# What a worker sends; any other message is the reason of its end.
_READY = "ready"
# What the supervisor sends.
_STOP = "stop"
_COMPLETE = "complete"

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

    def report_ready(self) -> None:
        """Notes that predictions are answered."""
        self.send(_READY)

    def send(self, message: str) -> None:
        """Sends a message to the supervisor, if it still runs."""
        with suppress(OSError):
            self.link.send(message)

    def hear(self, stop: Callable[[], None], complete: Callable[[], None]) -> bool:
        """Calls `stop` or `complete` for each message; returns False at the supervisor's end.

        `stop` is once for each signal. `complete` is once, when all workers of the start are ready.
        """
        try:
            while self.link.poll():
                {_STOP: stop, _COMPLETE: complete}[self.link.recv()]()
        except (EOFError, OSError):
            stop()
            return False
        return True


@dataclass
class _Place:
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

    A worker that was ready is replaced at once. A failure before all have been ready is a failed
    start. Later, a replacement that fails is tried again after 1, 2, 4 and up to 30 seconds, as
    long as another worker is ready.
    """

    def __init__(
        self, count: int, serve: Callable[[Worker], None], announce: Callable[[], None]
    ) -> None:
        """`announce` is called once, when all workers are ready."""
        self._serve = serve
        self._announce = announce
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._complete = False
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
                for place in self._list_running():
                    _kill(place)

    def _list_running(self) -> list[_Place]:
        return [place for place in self._places if place.process is not None]

    def _start_missing(self) -> None:
        for place in self._places:
            if place.process is None and not self._stops and place.start_at <= time.monotonic():
                self._start(place)

    def _start(self, place: _Place) -> None:
        place.link, theirs = multiprocessing.Pipe()
        place.ready, place.reason = False, ""
        at_once = place.number == 1 and not self._complete
        worker = Worker(place.number, at_once, theirs)
        process = multiprocessing.get_context("fork").Process(
            target=self._run_worker, args=(worker,), name=f"worker {place.number}"
        )
        # A signal between the fork and the worker's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        place.process = process
        logger.info("worker started", extra={"worker": place.number, "pid": process.pid})

    def _run_worker(self, worker: Worker) -> None:
        for place in self._places:
            if place.link is not None:
                place.link.close()  # else no worker would notice the supervisor's end
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        name_worker(worker.number)
        try:
            self._serve(worker)
        except (StartError, BundleError, ServiceBroken) as error:
            _leave(worker, str(error))
        except BaseException:
            logger.exception("unexpected error in a worker")
            _leave(worker, "unexpected error: see the log")

    def _wait(self, signals: socket.socket) -> None:
        running = self._list_running()
        links = [place.link for place in running if place.link is not None]
        sentinels = [place.process.sentinel for place in running if place.process is not None]
        pauses = [place.start_at for place in self._places if place.process is None]
        timeout = None
        if pauses and not self._stops:
            timeout = max(0.0, min(pauses) - time.monotonic())
        found = wait([signals, *links, *sentinels], timeout)
        if signals in found:
            for _ in signals.recv(64):
                self._stop()
        for place in running:
            self._hear(place)
            if place.process is not None and place.process.sentinel in found:
                self._bury(place)

    def _stop(self) -> None:
        self._stops += 1
        for place in self._list_running():
            if place.link is not None:
                with suppress(OSError):
                    place.link.send(_STOP)
            if self._stops >= _KILLING_STOP:
                _kill(place)

    def _hear(self, place: _Place) -> None:
        try:
            while place.link is not None and place.link.poll():
                message = place.link.recv()
                if message == _READY:
                    place.ready, place.failed_starts = True, 0
                else:
                    place.reason = message
        except (EOFError, OSError):
            place.link = None
        if not self._complete and all(each.ready for each in self._places):
            self._complete = True
            first = self._places[0].link
            if first is not None:
                with suppress(OSError):
                    first.send(_COMPLETE)
            self._announce()

    def _bury(self, place: _Place) -> None:
        assert place.process is not None
        place.process.join()
        code = place.process.exitcode or 0
        was_ready, place.ready = place.ready, False
        place.process = place.link = None
        if self._stops and code in (0, -signal.SIGTERM):
            return
        reason = place.reason or _describe(code)
        if not (self._complete or was_ready or self._stops):
            raise StartError(place.reason or f"worker {place.number} cannot start: {reason}")
        logger.error("worker ended", extra={"worker": place.number, "reason": reason})
        if was_ready or self._stops:
            return
        if not any(each.ready for each in self._places):
            raise ServiceBroken(f"no worker can start: {reason}")
        pause = min(2.0**place.failed_starts, _LONGEST_PAUSE_SECONDS)
        place.failed_starts += 1
        place.start_at = time.monotonic() + pause


def _leave(worker: Worker, reason: str) -> None:
    worker.send(reason)
    sys.stderr.flush()
    os._exit(1)  # Python's own exit could wait for a hanging GPU


def _kill(place: _Place) -> None:
    if place.process is not None:
        place.process.kill()


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
