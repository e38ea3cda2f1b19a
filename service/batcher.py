"""Single items become batches, without a timer: whenever a worker is free, it takes what waits.

In: one item of one request. Out: that item's own result. While every worker is busy items
gather in a bounded queue, so batches grow with the load and a lone item never waits.
Nothing here knows of images: `pipeline.py` puts pixels in and gets logits out, and gives
the function that runs a batch, which is `engine.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.errors import DeadlineExceeded, Draining, InferenceFailed, NotReady, QueueFull
from service.waiting import Done, Waiting, WaitingLine, fail_all

_log = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

RunBatch = Callable[[Sequence[ItemT], bool], Sequence[ResultT]]
"""Runs a batch, in a worker's thread: one result an item, in order. The second argument
tells that the batch is alone: nothing else runs or waits, so it may use every core."""


@dataclass(frozen=True)
class BatcherStats:
    """Counters since the start, and what is going on now.

    Attributes:
        waiting: items in the queue now.
        running: batches being run now.
        items: items that were run.
        batches: batches that were run, failed ones included.
        failed: batches that failed.
        refused: items refused because the queue was full.
        cancelled: items whose client left before their answer.
        expired: items whose deadline passed before their answer.
    """

    waiting: int = 0
    running: int = 0
    items: int = 0
    batches: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0


class Batcher(Generic[ItemT, ResultT]):
    """A bounded queue, a dispatcher and a few worker threads.

    Every method belongs to one event loop; only `run_batch` is called in the workers.
    """

    def __init__(
        self,
        run_batch: RunBatch[ItemT, ResultT],
        *,
        max_batch_size: int,
        queue_size: int,
        workers: int = 1,
        max_wait_seconds: float = 0.0,
    ) -> None:
        """Prepares a batcher; nothing runs before `start`.

        Args:
            run_batch: runs one batch in a worker's thread.
            max_batch_size: most items in a batch, 1 or more.
            queue_size: most items that may wait; more are refused at once.
            workers: batches that may run at the same time.
            max_wait_seconds: how long an item may wait for others to fill its batch
                while a worker is free.
        """
        self._run_batch = run_batch
        self._max_batch_size = max_batch_size
        self._workers = workers
        self._max_wait_seconds = max_wait_seconds
        self._line = WaitingLine[ItemT, ResultT](queue_size)
        self._runs: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="infer")
        self._wake = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None
        self._draining = False
        self._counts = {
            "items": 0, "batches": 0, "failed": 0, "refused": 0, "cancelled": 0, "expired": 0
        }  # fmt: skip

    @property
    def healthy(self) -> bool:
        """Whether the dispatcher lives; one that died never comes back."""
        return self._dispatcher is not None and not self._dispatcher.done()

    def stats(self) -> BatcherStats:
        """Returns the counters."""
        return BatcherStats(waiting=len(self._line), running=len(self._runs), **self._counts)

    def start(self) -> None:
        """Starts the dispatcher in the running event loop."""
        self._dispatcher = asyncio.create_task(self._dispatch(), name="batcher")
        self._dispatcher.add_done_callback(self._on_dispatcher_done)

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
        self._wake.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting.future
        except TimeoutError as error:
            self._withdraw(waiting, "expired")
            raise DeadlineExceeded("the deadline passed in the queue") from error
        except asyncio.CancelledError:
            self._withdraw(waiting, "cancelled")
            raise

    async def drain(self, deadline: float) -> None:
        """Refuses new items, finishes those that wait or run, and stops.

        Args:
            deadline: second on the event loop's clock at which what is left fails with
                `Draining`.
        """
        self._draining = True
        self._wake.set()
        if self._dispatcher is not None:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([self._dispatcher], timeout=left)
            self._dispatcher.cancel()
        self._line.fail(Draining("stopped before this item was run"))
        for run in self._runs:
            run.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _join(self, item: ItemT, deadline: float) -> Waiting[ItemT, ResultT]:
        if self._draining:
            raise Draining("the batcher is draining")
        if not self.healthy:
            raise NotReady("the batcher is not running")
        try:
            return self._line.join(item, deadline)
        except QueueFull:
            self._counts["refused"] += 1
            raise

    def _withdraw(self, waiting: Waiting[ItemT, ResultT], reason: str) -> None:
        self._counts[reason] += 1
        self._line.leave(waiting)
        self._wake.set()

    async def _dispatch(self) -> None:
        while not self._draining or self._line or self._runs:
            pause = self._pause_seconds()
            if pause == 0:
                self._start_run()
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _pause_seconds(self) -> float | None:
        """Returns how long to wait before the next batch; None means until woken."""
        if not self._line or len(self._runs) >= self._workers:
            return None
        if self._draining or len(self._line) >= self._max_batch_size:
            return 0
        waited = time.perf_counter() - self._line.oldest.arrived
        return max(0.0, self._max_wait_seconds - waited)

    def _start_run(self) -> None:
        # Workers that are free share what waits, so that none gets it all.
        free = self._workers - len(self._runs)
        batch = self._line.take(min(self._max_batch_size, math.ceil(len(self._line) / free)))
        if not batch:
            return
        alone = not self._runs and not self._line
        run = asyncio.create_task(self._run(batch, alone))
        self._runs.add(run)
        run.add_done_callback(self._on_run_done)

    async def _run(self, batch: list[Waiting[ItemT, ResultT]], alone: bool) -> None:
        loop = asyncio.get_running_loop()
        items = [waiting.item for waiting in batch]
        started = time.perf_counter()
        self._counts["batches"] += 1
        self._counts["items"] += len(items)
        try:
            results = await loop.run_in_executor(self._threads, self._run_batch, items, alone)
            if len(results) != len(items):
                raise InferenceFailed(f"{len(results)} results for {len(items)} items")
        except asyncio.CancelledError:
            fail_all(batch, Draining("stopped while this item was run"))
            raise
        except Exception as error:
            _log.exception("a batch of %d failed", len(items))
            self._counts["failed"] += 1
            known = isinstance(error, InferenceFailed)
            fail_all(batch, error if known else InferenceFailed("the run raised an error"))
            return
        seconds = time.perf_counter() - started
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                queued = started - waiting.arrived
                waiting.future.set_result(Done(result, queued, seconds, len(items)))

    def _on_run_done(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        self._wake.set()

    def _on_dispatcher_done(self, dispatcher: asyncio.Task[None]) -> None:
        if self._draining:
            return
        cause = None if dispatcher.cancelled() else dispatcher.exception()
        _log.critical("the batcher's dispatcher died", exc_info=cause)
        self._line.fail(NotReady("the batcher died"))
