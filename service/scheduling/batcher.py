"""Single items become batches: whenever a worker is free, it takes what waits.

In: one item of one request. Out: that item's own result. While every worker is busy items
gather in a bounded queue, so batches grow with the load and a lone item never waits.
Workers take from the line by themselves: a busy event loop keeps no worker idle. A worker that
has answered several clients gives them a moment to be back with their next items. One that begins a
run while all the others work keeps to a core of its own for that run. A run that never ends is as a
worker that died (`runs.py`).
Nothing here knows of images: `pipeline.py` gives the function that runs a batch, which is
`inference.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from service.errors import (
    DeadlineExceeded,
    Draining,
    InferenceFailed,
    NotReady,
    ServiceBroken,
    without_frames,
)
from service.scheduling.cpu import ANY_CORE, Core
from service.scheduling.queue import (
    BatchSizes,
    Done,
    ItemT,
    ResultT,
    Waiting,
    WaitingLine,
    fail_all,
)
from service.scheduling.watchdog import Runs

# Of the time of a run: how long its worker waits for those whom it has answered to be back.
_RETURN_SHARE = 0.1

_log = logging.getLogger(__name__)

IsAlone = Callable[[], bool]
"""Tells whether a batch is alone: nothing else runs or waits, so it may use every core."""

RunBatch = Callable[[Sequence[ItemT], IsAlone], Sequence[ResultT | Exception]]
"""Runs a batch, in a worker's thread: one result an item, in order. An exception in the place
of a result fails its item; one that is raised fails the batch."""


class Batcher(Generic[ItemT, ResultT]):
    """A bounded line and a few worker threads.

    Public methods belong to one event loop. `_work`, `_run` and `_is_alone` run in the workers:
    they touch the line and `_runs`, and hand everything else to the loop through `_tell`.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        run_batch: RunBatch[ItemT, ResultT],
        *,
        batch_sizes: BatchSizes,
        queue_size: int,
        cores: Sequence[Core] = (ANY_CORE,),
        max_wait_seconds: float = 0.0,
        max_run_seconds: float = math.inf,
    ) -> None:
        """Prepares a batcher; nothing runs before `start`.

        Args:
            run_batch: runs one batch in a worker's thread.
            batch_sizes: items in a batch; `WaitingLine.take` chooses.
            queue_size: most items that may wait; more are refused at once.
            cores: one for each batch that may run at the same time.
            max_wait_seconds: how long an item may wait for others to fill its batch
                while a worker is free.
            max_run_seconds: a run that takes longer never ends.
        """
        self._run_batch = run_batch
        self._cores = cores
        self._line = WaitingLine[ItemT, ResultT](
            queue_size,
            batch_sizes,
            workers=len(cores),
            max_wait_seconds=max_wait_seconds,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runs = Runs[ItemT, ResultT](max_run_seconds)
        self._living = 0
        self._stopped = asyncio.Event()
        self._dead = False
        self._draining = False

    @property
    def healthy(self) -> bool:
        """Whether every worker lives; one that died or hangs never comes back."""
        return self._loop is not None and not self._dead

    @property
    def waiting(self) -> int:
        """Items in the queue."""
        return len(self._line)

    def start(self) -> None:
        """Starts the workers; their results come back to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._living = len(self._cores)
        for number, core in enumerate(self._cores):
            # A run that never ends must not keep the process from ending.
            name = f"infer-{number}"
            threading.Thread(target=self._work, args=(core,), name=name, daemon=True).start()
        self._runs.watch(self._on_hang)

    async def submit(self, item: ItemT, deadline: float) -> Done[ResultT]:
        """Waits in the queue, is run in some batch, and returns the item's own result.

        A caller that is cancelled while it waits frees its place at once.

        Args:
            item: what to run.
            deadline: second on the event loop's clock after which nobody wants the
                result; an item that is still in the queue then is never run.

        Raises:
            QueueFull: there is no place in the queue.
            DeadlineExceeded: the deadline passed.
            UnavailableError: the batcher is draining, was not started, or has died.
            InferenceFailed: the item's batch failed.
        """
        waiting = self._join(item, deadline)
        timer = asyncio.get_running_loop().call_at(deadline, self._expire, waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._line.leave(waiting)
            raise
        finally:
            timer.cancel()
            # An error of the future would keep this frame, and the frame the future: a cycle, in
            # which the item stayed until Python looks for garbage.
            del waiting

    async def drain(self, deadline: float) -> None:
        """Refuses new items, finishes those that wait or run, and stops.

        Args:
            deadline: second on the event loop's clock at which what is left fails with
                `Draining`.
        """
        self._draining = True
        self._line.close()
        if self._living:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._stopped.wait()
        self.give_up()
        self._runs.stop()

    def give_up(self) -> None:
        """Fails those that wait or run with `Draining`; the workers end their runs."""
        self._line.fail(Draining("stopped before this item was run"))
        self._runs.fail(Draining("stopped while this item was run"))

    def _join(self, item: ItemT, deadline: float) -> Waiting[ItemT, ResultT]:
        if self._draining:
            raise Draining("the batcher is draining")
        if not self.healthy:
            raise NotReady("the batcher is not running")
        return self._line.join(item, deadline)

    def _expire(self, waiting: Waiting[ItemT, ResultT]) -> None:
        if not waiting.future.done():
            self._line.leave(waiting)
            waiting.future.set_exception(DeadlineExceeded("the deadline passed in the queue"))

    def _work(self, core: Core) -> None:
        """Takes batches and runs them, in a worker's thread, until the line is closed."""
        batch: Sequence[Waiting[ItemT, ResultT]] = ()
        try:
            while batch := self._line.take():
                self._run(batch, core)
                batch = ()  # nothing is kept while this worker waits
        except BaseException:
            _log.critical("a worker of the batcher died", exc_info=True)
        finally:
            self._tell(partial(self._on_worker_end, batch))

    def _is_alone(self, core: Core) -> bool:
        alone = len(self._runs) == 1 and not self._line
        if alone:
            core.leave()  # the threads that help with this run come to where there is room
        return alone

    def _run(self, batch: Sequence[Waiting[ItemT, ResultT]], core: Core) -> None:
        started = time.perf_counter()
        run = self._runs.begin(batch)
        if len(self._runs) == len(self._cores):
            core.keep()
        else:
            core.leave()
        tell: Callable[[], None]
        return_seconds = 0.0
        try:
            is_alone = partial(self._is_alone, core)
            results = self._run_batch([waiting.item for waiting in batch], is_alone)
            if len(results) != len(batch):
                raise InferenceFailed(f"{len(results)} results for {len(batch)} items")
        except ServiceBroken:
            raise  # this worker dies of it
        except Exception as error:
            _log.exception("a batch of %d failed", len(batch))
            if not isinstance(error, InferenceFailed):
                error = InferenceFailed("the run raised an error")
            tell = partial(fail_all, batch, without_frames(error))
        else:
            seconds = time.perf_counter() - started
            return_seconds = seconds * _RETURN_SHARE
            tell = partial(self._deliver, batch, results, started, seconds)
        finally:
            self._runs.end(run)
            self._line.finish(len(batch), return_seconds)
        # Last: who asks again at once must not find that this batch still runs.
        self._tell(tell)

    def _tell(self, what: Callable[[], None]) -> None:
        """Calls a function in the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # a closed loop has nobody who waits
            self._loop.call_soon_threadsafe(what)

    def _deliver(
        self,
        batch: Sequence[Waiting[ItemT, ResultT]],
        results: Sequence[ResultT | Exception],
        started: float,
        seconds: float,
    ) -> None:
        for waiting, result in zip(batch, results, strict=True):
            if waiting.future.done():
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                queued = started - waiting.arrived
                waiting.future.set_result(Done(result, queued, seconds, len(batch)))

    def _on_worker_end(self, batch: Sequence[Waiting[ItemT, ResultT]]) -> None:
        """Notes the end of a worker; where it died, `batch` is what it was at."""
        self._living -= 1
        if not self._living:
            self._stopped.set()
        if batch:
            self._dead = True
            fail_all(batch, NotReady("the batcher died"))
            self._line.fail(NotReady("the batcher died"))

    def _on_hang(self) -> None:
        """Gives up on all workers: what one hangs in, the others need too."""
        _log.critical("a run of the batcher hangs")
        self._dead = True
        self._stopped.set()
        self._runs.fail(NotReady("a run hangs"))
        self._line.fail(NotReady("a run hangs"))
