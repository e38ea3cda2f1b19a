"""Items get their own results, whatever happens to their batch or to the queue.

The fakes do sums, so that a swapped result shows. Workers wait for a gate instead of
sleeping.
"""

import asyncio
import math
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import DeadlineExceeded, Draining, InferenceFailed, NotReady, OutOfMemory
from service.scheduling.batcher import Batcher, IsOnlyRun, RunBatch
from service.scheduling.cpu import ANY_CORE, Core
from service.scheduling.queue import BatchQueue, BatchSizes

pytestmark = pytest.mark.anyio

SECONDS = 30.0
SPOILT, DEADLY = -100, -200


class Doubler:
    """Doubles integers; every run waits for the gate.

    A negative item fails its batch, `SPOILT` itself only, and `DEADLY` kills the worker.
    """

    def __init__(self, *, closed: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.used_all_threads: list[bool] = []
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)
        if not closed:
            self.gate.set()

    def __call__(
        self, items: Sequence[int], uses_all_threads: IsOnlyRun
    ) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        self.used_all_threads.append(uses_all_threads())
        self.started.release()
        assert self.gate.wait(SECONDS)
        if DEADLY in items:
            raise SystemExit
        if any(item < 0 for item in items if item != SPOILT):
            raise ValueError("a negative item")
        return [2 * item if item != SPOILT else ZeroDivisionError("spoilt") for item in items]

    async def wait_for_start(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=SECONDS)


def make_batcher(
    run: RunBatch[Any, int],
    *,
    max_batch_size: int = 4,
    cores: Sequence[Core] = (ANY_CORE,),
    max_run_seconds: float = math.inf,
    started: bool = True,
) -> Batcher[Any, int]:
    sizes = BatchSizes(max_batch_size, max_batch_size)
    queue = BatchQueue[Any, int](100, sizes, workers=len(cores))
    batcher = Batcher[Any, int](run, queue, cores=cores, max_run_seconds=max_run_seconds)
    made.append(batcher)
    if started:
        batcher.start()
    return batcher


made: list[Batcher[Any, int]] = []


@pytest.fixture(autouse=True)
async def drain_batchers() -> AsyncIterator[None]:
    yield
    while made:
        await made.pop().drain(soon())


def soon() -> float:
    return asyncio.get_running_loop().time() + SECONDS


def send(batcher: Batcher[int, int], item: int) -> asyncio.Task[int]:
    async def submit() -> int:
        return (await batcher.submit(item, soon())).result

    return asyncio.create_task(submit())


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class NotedCore(Core):
    """Records `pin` as True and `unpin` as False."""

    def __init__(self) -> None:
        super().__init__(None)
        self.notes: list[bool] = []

    def pin(self) -> None:
        self.notes.append(True)

    def unpin(self) -> None:
        self.notes.append(False)


async def hold_worker(batcher: Batcher[int, int], run: Doubler) -> asyncio.Task[int]:
    """Keeps one worker busy until the gate opens."""
    task = send(batcher, 1000)
    await run.wait_for_start()
    return task


async def make_busy(**options: Any) -> tuple[Doubler, Batcher[int, int], asyncio.Task[int]]:
    """Returns a batcher with a busy worker, and that worker's task."""
    run = Doubler(closed=True)
    batcher = make_batcher(run, **options)
    return run, batcher, await hold_worker(batcher, run)


async def assert_still_works(batcher: Batcher[int, int]) -> None:
    assert await send(batcher, 21) == 42
    assert batcher.healthy


async def test_times_of_queue_and_run_are_separate() -> None:
    run = Doubler(closed=True)
    batcher = make_batcher(run)
    sent = time.perf_counter()
    runs = asyncio.create_task(batcher.submit(1, soon()))
    await run.wait_for_start()
    waits = asyncio.create_task(batcher.submit(2, soon()))
    await let_tasks_run()

    joined = time.perf_counter()
    await asyncio.sleep(0.05)
    held = time.perf_counter() - joined
    run.gate.set()
    first, second = await runs, await waits
    passed = time.perf_counter() - sent

    assert (first.result, first.batch_size) == (2, 1)
    assert first.run_seconds >= held
    assert second.queue_seconds >= held
    assert all(done.queue_seconds + done.run_seconds <= passed for done in (first, second))


async def test_worker_waits_for_the_next_items_of_answered_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.scheduling.batcher._RETURN_SHARE", 1e9)
    run, batcher, first = await make_busy()
    three = [send(batcher, item) for item in range(3)]
    await let_tasks_run()
    run.gate.set()
    await asyncio.gather(first, *three)

    back = [send(batcher, item) for item in (4, 5)]
    await asyncio.sleep(0.01)
    back.append(send(batcher, 6))

    assert await asyncio.gather(*back) == [8, 10, 12]
    assert run.batches == [[1000], [0, 1, 2], [4, 5, 6]]


async def test_batch_uses_all_threads_only_without_another_run() -> None:
    run, batcher, first = await make_busy(cores=[ANY_CORE] * 2, max_batch_size=1)
    second = send(batcher, 1)
    await run.wait_for_start()

    run.gate.set()
    await asyncio.gather(first, second)
    await send(batcher, 2)

    assert run.used_all_threads == [True, False, True]


async def test_batch_does_not_use_all_threads_when_items_wait() -> None:
    run, batcher, first = await make_busy(max_batch_size=1)
    others = [send(batcher, item) for item in (1, 2)]
    await let_tasks_run()

    run.gate.set()
    await asyncio.gather(first, *others)

    assert run.used_all_threads == [True, False, True]


async def test_answered_item_does_not_count_as_running() -> None:
    run = Doubler()
    batcher = make_batcher(run, cores=[ANY_CORE] * 2)

    for item in range(500):
        await batcher.submit(item, soon())

    assert run.used_all_threads == [True] * 500


class Photo:
    """An item that takes memory."""


async def test_answered_item_is_freed() -> None:
    batcher = make_batcher(lambda items, _: [0] * len(items))
    photo = Photo()
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    weakref.finalize(photo, loop.call_soon_threadsafe, gone.set)

    await batcher.submit(photo, soon())
    del photo

    await asyncio.wait_for(gone.wait(), SECONDS / 2)  # long before its deadline


async def test_cancelled_waiter_frees_its_place_and_does_not_stall_its_batch() -> None:
    run, batcher, first = await make_busy()
    second, third, fourth = (send(batcher, item) for item in (2, 3, 4))
    await let_tasks_run()

    third.cancel()
    await let_tasks_run()
    fifth = send(batcher, 5)
    await let_tasks_run()
    fourth.cancel()
    run.gate.set()

    assert await asyncio.gather(first, second, fifth) == [2000, 4, 10]
    assert run.batches == [[1000], [2, 5]]


async def test_expired_item_fails_and_is_never_run() -> None:
    run, batcher, first = await make_busy()

    with pytest.raises(DeadlineExceeded):
        await batcher.submit(7, asyncio.get_running_loop().time() + 0.001)

    run.gate.set()
    assert await first == 2000
    await assert_still_works(batcher)
    assert run.batches == [[1000], [21]]


async def test_failed_batch_fails_its_own_items_and_an_error_as_a_result_one_item() -> None:
    run, batcher, first = await make_busy(max_batch_size=2)
    tasks = [send(batcher, item) for item in (-1, 2, 3, SPOILT)]
    await let_tasks_run()
    run.gate.set()

    results = await asyncio.gather(first, *tasks, return_exceptions=True)

    kinds = [InferenceFailed, InferenceFailed, int, ZeroDivisionError]
    assert [type(result) for result in results[1:]] == kinds
    assert results[3] == 6
    assert run.batches == [[1000], [-1, 2], [3, SPOILT]]
    await assert_still_works(batcher)


def exhaust(_items: Sequence[int], _: IsOnlyRun) -> Sequence[int]:
    raise OutOfMemory("no memory")


@pytest.mark.parametrize(
    ("run", "error"),
    [(exhaust, OutOfMemory), (lambda _items, _: [], InferenceFailed)],
    ids=["the engine's own error", "missing results"],
)
async def test_failed_batch_raises_its_error(run: Any, error: type[Exception]) -> None:
    batcher = make_batcher(run)
    with pytest.raises(error):
        await batcher.submit(1, soon())


async def test_drain_finishes_waiting_items_and_refuses_new_ones() -> None:
    run, batcher, first = await make_busy(max_batch_size=2)
    tasks = [first, *(send(batcher, item) for item in range(3))]
    await let_tasks_run()

    drain = asyncio.create_task(batcher.drain(soon()))
    await let_tasks_run()
    with pytest.raises(Draining):
        await batcher.submit(9, soon())
    run.gate.set()
    await drain

    assert await asyncio.gather(*tasks) == [2000, 0, 2, 4]
    assert run.batches == [[1000], [0, 1], [2]]


async def test_drain_waits_for_every_worker() -> None:
    run, batcher, first = await make_busy(cores=[ANY_CORE] * 2)

    drain = asyncio.create_task(batcher.drain(soon()))
    await asyncio.sleep(0.01)  # the other one has nothing to do, and ends
    assert not drain.done()
    run.gate.set()
    await drain

    assert await first == 2000


async def test_drain_fails_unfinished_items_at_its_deadline() -> None:
    run, batcher, runs = await make_busy()
    waits = send(batcher, 1)
    await let_tasks_run()

    await batcher.drain(asyncio.get_running_loop().time())

    results = await asyncio.gather(runs, waits, return_exceptions=True)
    assert [type(result) for result in results] == [Draining, Draining]
    run.gate.set()


async def test_drain_of_an_idle_or_unstarted_batcher_returns() -> None:
    unstarted = make_batcher(Doubler(), started=False)
    assert not unstarted.healthy
    with pytest.raises(NotReady):
        await unstarted.submit(1, soon())
    async with asyncio.timeout(SECONDS):
        await make_batcher(Doubler()).drain(math.inf)
        await unstarted.drain(math.inf)


async def assert_dead(batcher: Batcher[int, int], tasks: list[asyncio.Task[int]]) -> None:
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [NotReady] * len(tasks)
    assert not batcher.healthy
    with pytest.raises(NotReady):
        await batcher.submit(2, soon())


async def test_dead_worker_fails_all_items() -> None:
    run, batcher, first = await make_busy(max_batch_size=2)
    tasks = [send(batcher, item) for item in (DEADLY, 1, 2)]
    await let_tasks_run()
    run.gate.set()

    await assert_dead(batcher, tasks)
    assert await first == 2000
    assert run.batches[1:] == [[DEADLY, 1]]


async def test_hung_run_fails_all_items() -> None:
    run = Doubler(closed=True)
    batcher = make_batcher(run, cores=[ANY_CORE] * 2, max_batch_size=1, max_run_seconds=0.01)
    tasks = [send(batcher, item) for item in range(3)]

    await assert_dead(batcher, tasks)
    run.gate.set()


async def test_hung_run_ends_the_drain() -> None:
    run, batcher, held = await make_busy(max_run_seconds=0.1)

    async with asyncio.timeout(SECONDS):
        await batcher.drain(math.inf)

    with pytest.raises(NotReady):
        await held
    run.gate.set()


async def test_suspended_process_is_not_taken_for_a_hang() -> None:
    run, batcher, held = await make_busy(max_run_seconds=0.2)

    time.sleep(0.25)  # noqa: ASYNC251 - so that nothing else happens
    run.gate.set()

    assert await held == 2000
    await assert_still_works(batcher)


async def test_worker_pins_its_core_when_all_others_work() -> None:
    run, cores = Doubler(closed=True), (NotedCore(), NotedCore(), NotedCore())
    batcher = make_batcher(run, max_batch_size=1, cores=cores)
    tasks = [await hold_worker(batcher, run) for _ in cores]

    # The first uses all threads: it is unpinned when it begins and when it asks.
    assert sorted(core.notes for core in cores) == [[False], [False, False], [True]]

    run.gate.set()
    await asyncio.gather(*tasks)


# One step of a random history: a new item, a client that leaves, or time for the tasks.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(-3, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("run"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=40)
@given(steps=steps, max_batch_size=st.integers(1, 5), workers=st.integers(1, 3))
async def test_each_item_gets_its_own_result_under_random_arrival_and_leaving(
    steps: list[tuple[str, int]], max_batch_size: int, workers: int
) -> None:
    run = Doubler()
    batcher = make_batcher(run, max_batch_size=max_batch_size, cores=[ANY_CORE] * workers)
    sent: list[tuple[int, asyncio.Task[int]]] = []
    for step, value in steps:
        if step == "send":
            sent.append((value, send(batcher, value)))
        elif step == "cancel" and sent:
            sent[value % len(sent)][1].cancel()
        else:
            await let_tasks_run()
    results = await asyncio.gather(*(task for _, task in sent), return_exceptions=True)
    await batcher.drain(soon())
    assert not batcher._queue

    failures = (asyncio.CancelledError, InferenceFailed)
    for (value, _), result in zip(sent, results, strict=True):
        assert isinstance(result, failures) or result == 2 * value
    assert all(len(batch) <= max_batch_size for batch in run.batches)
