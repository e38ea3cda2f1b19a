"""Worker processes that share one port: forked, stopped and replaced by a supervisor.

uvicorn's `Multiprocess` does not fit. It ends the service if a worker exits with 3, our code of a
lost GPU; it restarts a worker for ever whose bundle is damaged, and cannot say why; it waits half
a second before it replaces one, which then imports for another.
"""

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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from service.errors import BundleError, ServiceBroken, StartError
from service.logs import name_worker
from service.process.notify import Watchdog, notify, notify_reloaded, notify_reloading
from service.process.ports import Ports
from service.scheduling.suspects import Suspects

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_HAS_TERMINAL = os.isatty(0)
_KILLING_STOP = 3
_LONGEST_PAUSE_SECONDS = 30.0

# Messages of a worker; any other is the reason of its end.
READY = "ready"  # predictions are answered
RELOADED, NOT_RELOADED = "reloaded", "not reloaded"
# Messages of the supervisor.
_STOP, _RELOAD = "stop", "reload"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worker:
    """A worker's own side; `number` is from 1.

    The first worker of a start listens while it loads, for probes. All others listen when they are
    ready, so that no request meets one that loads.
    """

    number: int
    listens_at_once: bool
    supervisor: int  # its process
    ports: Ports
    link: Connection
    suspects: Suspects
    complete: mmap.mmap  # shared by all; one byte, 1 once all of the start have been ready

    def is_orphan(self) -> bool:
        """Returns whether the supervisor was killed."""
        return os.getppid() != self.supervisor

    def send(self, message: str) -> None:
        """Sends a message to the supervisor, if it still runs."""
        with suppress(OSError):
            self.link.send(message)

    def receive(self, stop: Callable[[], None], reload: Callable[[], None]) -> bool:
        """Calls one of both for each signal; returns False at the supervisor's end."""
        try:
            while self.link.poll():
                (reload if self.link.recv() == _RELOAD else stop)()
        except (EOFError, OSError):
            stop()
            return False
        return True


@dataclass(eq=False)
class _Slot:
    """One of the workers: its process, or when its replacement starts."""

    number: int
    process: ForkProcess = field(init=False)
    ready: bool = False
    asked: bool = False  # to reload; a process that started since SIGHUP need not be
    reason: str = ""
    failed_starts: int = 0  # one after the other
    start_at: float = 0.0  # seconds of `time.monotonic`


class Supervisor:
    """Runs `serve` in `count` processes, forked from this one, which must have no threads.

    A worker that was ready is replaced at once; the photos of one that crashed are refused for 10
    seconds. A failure before all have been ready is a failed start. Later, a replacement that fails
    is tried again after 1, 2, 4 and up to 30 seconds, as long as another worker is ready.

    On SIGHUP the workers reload one after the other. After a failure the others are not asked. For
    a worker that has ended, the start of its replacement is the reload.

    With `count_fitting`, worker 1 starts alone. Once it is ready, this returns how many may run. If
    that is fewer, worker 1 starts again, because its share of cores and limits is larger then.
    """

    def __init__(
        self,
        count: int,
        ports: Ports,
        serve: Callable[[Worker], None],
        *,
        count_fitting: Callable[[], int] | None = None,
    ) -> None:
        self._ports = ports
        self._serve = serve
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._count_fitting = count_fitting
        # Those with a process, by the supervisor's end of the link, which ends with the process.
        self._running: dict[Connection, _Slot] = {}
        self._complete = mmap.mmap(-1, 1)
        self._suspects = Suspects(len(self._slots))
        self._watchdog = Watchdog()
        self._stops = 0
        self._to_reload: list[_Slot] = []  # the first of them has been asked, or starts

    def run(self) -> None:
        """Returns after SIGTERM or Ctrl+C, when all workers have drained.

        Raises `StartError` if a worker cannot start, `ServiceBroken` if none is left that can.
        """
        with _catch_signals() as signals:
            try:
                while not self._stops or self._running:
                    self._wait(signals, self._start_missing())
            finally:
                self._kill_all()

    def _kill_all(self) -> None:
        for slot in self._running.values():
            slot.process.kill()

    def _start_missing(self) -> float | None:
        """Starts the workers whose time has come; returns the seconds until the next one's."""
        if self._stops:
            return None
        slots = self._slots[: 1 if self._count_fitting else None]
        for slot in slots:
            if slot not in self._running.values() and slot.start_at <= time.monotonic():
                self._start(slot)
        missing = [slot.start_at for slot in slots if slot not in self._running.values()]
        return max(0.0, min(missing) - time.monotonic()) if missing else None

    def _start(self, slot: _Slot) -> None:
        link, theirs = multiprocessing.Pipe()
        slot.ready, slot.asked, slot.reason = False, False, ""
        worker = Worker(
            number=slot.number,
            listens_at_once=slot.number == 1 and not self._complete[0],
            supervisor=os.getpid(),
            ports=self._ports,
            link=theirs,
            suspects=self._suspects,
            complete=self._complete,
        )
        slot.process = multiprocessing.get_context("fork").Process(
            target=self._run_worker, args=(worker, link), name=f"worker {slot.number}"
        )
        # A signal between the fork and the worker's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            slot.process.start()
        except OSError as error:  # such as no memory for another process
            if not self._complete[0]:
                raise
            reason = f"no process can be started: {error.strerror}"
            logger.error("worker ended", extra={"worker": slot.number, "reason": reason})
            self._delay(slot, reason)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        self._running[link] = slot
        logger.info("worker started", extra={"worker": slot.number, "pid": slot.process.pid})

    def _run_worker(self, worker: Worker, link: Connection) -> None:
        for supervisors_end in (link, *self._running):
            supervisors_end.close()  # else no worker would notice the supervisor's end
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.environ.pop("NOTIFY_SOCKET", None)  # the supervisor notifies systemd
        name_worker(worker.number)
        worker.suspects.watch(worker.number)
        try:
            self._serve(worker)
            return
        except (StartError, BundleError, ServiceBroken) as error:
            reason = str(error)
        except BaseException:
            logger.exception("unexpected error in a worker")
            reason = "unexpected error: see the log"
        worker.send(reason)
        sys.stderr.flush()
        os._exit(1)  # Python's own exit could wait for a hanging GPU

    def _wait(self, signals: socket.socket, timeout: float | None) -> None:
        timeouts = [each for each in (timeout, self._watchdog.beat()) if each is not None]
        readable = wait([signals, *self._running], min(timeouts, default=None))
        if signals in readable:
            for number in signals.recv(64):
                if number != signal.SIGHUP or has_lost_terminal():
                    self._stop()
                elif not self._stops:
                    self._reload()
        for link in [link for link in self._running if link in readable]:
            try:
                self._receive(self._running[link], link.recv())
            except (EOFError, OSError):
                self._reap(self._running.pop(link))

    def _stop(self) -> None:
        if not self._stops:
            notify("STOPPING=1", "STATUS=draining")
        self._stops += 1
        for link in self._running:
            with suppress(OSError):
                link.send(_STOP)
        if self._stops >= _KILLING_STOP:
            self._kill_all()

    def _reload(self) -> None:
        notify_reloading()
        asked = self._to_reload[:1]  # by an earlier SIGHUP; it is asked again
        self._to_reload = [*asked, *self._slots]
        for slot in self._slots:
            slot.start_at = 0.0  # the reason of failed starts may have been corrected
        if not asked:
            self._ask_next()

    def _ask_next(self) -> None:
        while self._to_reload and self._to_reload[0] not in self._slots:  # too many for the GPU
            del self._to_reload[0]
        if not self._to_reload:
            logger.info("all workers have reloaded")
            notify_reloaded(done=True)
            return
        for link, slot in self._running.items():
            if slot is self._to_reload[0]:
                slot.asked = True
                with suppress(OSError):  # it has ended, and will be reaped
                    link.send(_RELOAD)

    def _note_reload(self, slot: _Slot, *, done: bool) -> None:
        if self._stops or self._to_reload[:1] != [slot]:
            return
        del self._to_reload[0]
        if done or len(self._to_reload) == len(self._slots):  # SIGHUP was sent again
            self._ask_next()
            return
        self._to_reload = []
        notify_reloaded(done=False)
        logger.error(
            "worker %d of %d has not reloaded, and those after it were not asked: correct its "
            "error and send SIGHUP again",
            *(slot.number, len(self._slots)),
        )

    def _receive(self, slot: _Slot, message: str) -> None:
        if message in (RELOADED, NOT_RELOADED):
            self._note_reload(slot, done=message == RELOADED)
            return
        if message != READY:
            slot.reason = message
            return
        slot.ready, slot.failed_starts = True, 0
        if not slot.asked:
            self._note_reload(slot, done=True)
        if self._count_fitting is not None:
            fitting, self._count_fitting = self._count_fitting(), None
            if fitting < len(self._slots):
                self._slots = self._slots[:fitting]
                self._restart(slot)
        if not self._complete[0] and all(worker.ready for worker in self._slots):
            self._complete[0] = 1
            self._ports.announce()

    def _restart(self, slot: _Slot) -> None:
        slot.process.kill()
        slot.process.join()  # it frees its GPU
        self._running = {link: other for link, other in self._running.items() if other is not slot}
        slot.ready = False
        self._note_reload(slot, done=True)  # it opens what is on disk now

    def _reap(self, slot: _Slot) -> None:
        slot.process.join()
        code = slot.process.exitcode or 0
        was_ready, slot.ready = slot.ready, False
        stack, refused = self._suspects.end(slot.number)
        if not slot.asked:
            self._note_reload(slot, done=False)
        if self._stops and (not was_ready or code in (0, -signal.SIGTERM)):
            return
        reason = slot.reason or _describe(code)
        if not (self._complete[0] or was_ready or self._stops):
            raise StartError(slot.reason or f"{slot.process.name} cannot start: {reason}")
        fields = {"worker": slot.number, "reason": reason}
        if stack:
            fields |= {"refused_photos": refused, "stack": stack}
        logger.error("worker ended", extra=fields)
        if not (was_ready or self._stops):
            self._delay(slot, reason)

    def _delay(self, slot: _Slot, reason: str) -> None:
        """Starts a worker again later, after a start that failed."""
        if not any(other.ready for other in self._slots):
            raise ServiceBroken(f"no worker can start: {reason}")
        pause = min(2.0**slot.failed_starts, _LONGEST_PAUSE_SECONDS)
        slot.failed_starts += 1
        slot.start_at = time.monotonic() + pause


def has_lost_terminal() -> bool:
    """Returns whether the terminal in which the service was started has been closed.

    That sends SIGHUP too. Under `nohup` and a service manager the input is no terminal.
    """
    return _HAS_TERMINAL and not os.isatty(0)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


@contextmanager
def _catch_signals() -> Iterator[socket.socket]:
    """Yields a socket with a byte, its number, for each of `_SIGNALS`."""
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
