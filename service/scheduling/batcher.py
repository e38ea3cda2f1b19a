"""Batches items: a free worker takes those that wait; by default a lone item never waits."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from service import errors
from service.errors import without_frames
from service.scheduling.cpu import ANY_CORE, Core
from service.scheduling.queue import BatchQueue, Done, ItemT, QueuedItem, ResultT, fail_items

# Share of the run time that a worker waits for the next requests of the clients it has answered.
_RETURN_SHARE = 0.1
# Ticks of the watchdog before a run counts as hung.
_MAX_TICKS = 10

logger = logging.getLogger(__name__)

# Whether no other batch runs or waits, so that this one may use every core.
IsOnlyRun = Callable[[], bool]
# Runs a batch in a worker's thread: one result per item, in order. An exception in the place of a
# result fails its item; a raised one fails the batch.
RunBatch = Callable[[Sequence[ItemT], IsOnlyRun], Sequence[ResultT | Exception]]


@dataclass(eq=False)
class _Run(Generic[ItemT, ResultT]):
    """A running batch, and how many ticks of the watchdog it has lasted."""

    batch: Sequence[QueuedItem[ItemT, ResultT]]
    ticks: int = 0


class Batcher(Generic[ItemT, ResultT]):
    """One worker for each of `cores`; a run of more than `max_run_seconds` counts as hung.

    `_work`, `_run`, `_uses_all_threads` and `_call_in_loop` run in the workers, the rest in one
    event loop.
    """

    def __init__(
        self,
        run_batch: RunBatch[ItemT, ResultT],
        queue: BatchQueue[ItemT, ResultT],
        *,
        cores: Sequence[Core] = (ANY_CORE,),
        max_run_seconds: float = math.inf,
    ) -> None:
        self._run_batch = run_batch
        self._queue = queue
        self._cores = cores
        self._tick_seconds = max_run_seconds / _MAX_TICKS
        self._watchdog: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs: set[_Run[ItemT, ResultT]] = set()
        self._living = 0
        self._stopped = asyncio.Event()
        self._dead = False
        self._draining = False

    @property
    def healthy(self) -> bool:
        """Whether every worker lives; a dead or hung worker never comes back."""
        return self._loop is not None and not self._dead

    def start(self) -> None:
        """Starts the workers; results come back to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._living = len(self._cores)
        for number, core in enumerate(self._cores):
            # A daemon: a hung run must not keep the process from ending.
            name = f"infer-{number}"
            threading.Thread(target=self._work, args=(core,), name=name, daemon=True).start()
        self._watch()

    async def submit(self, item: ItemT, deadline: float, weight: int = 1) -> Done[ResultT]:
        """Returns the item's own result; a cancelled caller frees its place at once.

        An item that is still queued at `deadline`, on the event loop's clock, is never run. As
        for `BatchQueue.put`, `check_room` comes first. Raises DeadlineExceeded, UnavailableError if
        the batcher is draining, not started or dead, or InferenceFailed if the item's batch failed.
        """
        if self._draining:
            raise errors.Draining("the batcher is draining")
        if not self.healthy:
            raise errors.NotReady("the batcher is not running")
        queued = self._queue.put(item, deadline, weight)
        timer = asyncio.get_running_loop().call_at(deadline, self._expire, queued)
        try:
            return await queued.future
        except asyncio.CancelledError:
            self._queue.remove(queued)
            raise
        finally:
            timer.cancel()
            # The future's error refers to this frame, and the frame to the future: a cycle that
            # keeps the item until Python's next garbage collection.
            del queued

    async def drain(self, deadline: float) -> None:
        """Refuses new items and finishes the others; at the deadline those fail with `Draining`."""
        self._draining = True
        self._queue.close()
        if self._living:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._stopped.wait()
        self.fail_all()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def fail_all(self) -> None:
        """Fails waiting and running items with `Draining`; the workers end their runs."""
        self._fail(errors.Draining("stopped before this item was answered"))

    def _fail(self, error: Exception) -> None:
        self._queue.fail(error)
        for run in list(self._runs):
            fail_items(run.batch, error)

    def _expire(self, queued: QueuedItem[ItemT, ResultT]) -> None:
        if not queued.future.done():
            self._queue.remove(queued)
            queued.future.set_exception(errors.DeadlineExceeded("deadline exceeded in the queue"))

    def _work(self, core: Core) -> None:
        batch: Sequence[QueuedItem[ItemT, ResultT]] = ()
        try:
            while batch := self._queue.take():
                self._run(batch, core)
                batch = ()  # an idle worker must not keep its last photos
        except BaseException:
            logger.critical("a worker of the batcher died", exc_info=True)
        finally:
            self._call_in_loop(partial(self._on_worker_end, batch))

    def _uses_all_threads(self, core: Core, first: QueuedItem[ItemT, ResultT]) -> bool:
        # The next item must not wait for the threads of a long one.
        is_only_one = len(self._runs) == 1 and not self._queue and not first.is_long
        if is_only_one:
            core.unpin()
        return is_only_one

    def _run(self, batch: Sequence[QueuedItem[ItemT, ResultT]], core: Core) -> None:
        started = time.perf_counter()
        run = _Run(batch)
        self._runs.add(run)
        if len(self._runs) == len(self._cores):
            core.pin()
        else:
            core.unpin()
        report: Callable[[], None]
        return_seconds = 0.0
        try:
            uses_all_threads = partial(self._uses_all_threads, core, batch[0])
            results = self._run_batch([queued.item for queued in batch], uses_all_threads)
            if len(results) != len(batch):
                raise errors.InferenceFailed(f"{len(results)} results for {len(batch)} items")
        except errors.ServiceBroken:
            raise  # ends this worker
        except Exception as error:
            if not isinstance(error, errors.UnavailableError):
                logger.exception("a batch of %d failed", len(batch))
                if not isinstance(error, errors.InferenceFailed):
                    error = errors.InferenceFailed("the run raised an error")
            report = partial(fail_items, batch, without_frames(error))
        else:
            seconds = time.perf_counter() - started
            return_seconds = seconds * _RETURN_SHARE
            report = partial(_deliver, batch, results, started, seconds)
        finally:
            self._runs.remove(run)
            self._queue.finish(len(batch), return_seconds, is_long=batch[0].is_long)
        # Last: a client's next item must not find that this batch still runs.
        self._call_in_loop(report)

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _on_worker_end(self, batch: Sequence[QueuedItem[ItemT, ResultT]]) -> None:
        self._living -= 1
        if not self._living:
            self._stopped.set()
        if batch:  # the worker died while it ran this batch
            self._dead = True
            died = errors.NotReady("the batcher died")
            fail_items(batch, died)
            self._queue.fail(died)

    def _watch(self) -> None:
        """Counts the ticks of runs, not time: a suspended process is not taken for a hang."""
        runs = list(self._runs)
        for run in runs:
            run.ticks += 1
        if any(run.ticks > _MAX_TICKS for run in runs):
            logger.critical("a run of the batcher hangs")
            self._dead = True
            self._stopped.set()
            self._fail(errors.NotReady("a run hangs"))
        else:
            self._watchdog = asyncio.get_running_loop().call_later(self._tick_seconds, self._watch)


def _deliver(
    batch: Sequence[QueuedItem[ItemT, ResultT]],
    results: Sequence[ResultT | Exception],
    started: float,
    seconds: float,
) -> None:
    for queued, result in zip(batch, results, strict=True):
        if queued.future.done():
            continue
        if isinstance(result, Exception):
            queued.future.set_exception(result)
        else:
            queued.future.set_result(Done(result, started - queued.arrived, seconds, len(batch)))
