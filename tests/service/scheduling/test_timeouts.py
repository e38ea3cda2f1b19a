"""Work ends in time or is cancelled, as by `asyncio.timeout`; what never waits sets no timer."""

from __future__ import annotations

import asyncio

import pytest

from service.scheduling.timeouts import finish_within

pytestmark = pytest.mark.anyio

NEVER = 30.0
# A timer that ends as soon as the loop looks at it.
AT_ONCE = 0.0


class Work:
    """Waits for each of its gates in turn, and remembers how it ended."""

    def __init__(self, gates: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.gates = [loop.create_future() for _ in range(gates)]
        self.waiting = asyncio.Event()
        self.ended: BaseException | None = None

    async def run(self) -> list[int]:
        try:
            self.waiting.set()
            return [await gate for gate in self.gates]
        except BaseException as error:
            self.ended = error
            raise


async def add(first: int, second: int) -> int:
    return first + second


async def fail_after(gate: asyncio.Future[None] | None) -> None:
    if gate is not None:
        await gate
    raise LookupError("as it is")


async def test_work_that_never_waits_is_finished_whatever_the_time() -> None:
    assert await finish_within(AT_ONCE, add(2, 3)) == 5


async def test_work_that_never_waits_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_seconds: float) -> None:
        raise AssertionError("a timer was set")

    monkeypatch.setattr(asyncio, "timeout", refuse)

    assert await finish_within(NEVER, add(2, 3)) == 5
    with pytest.raises(AssertionError, match="a timer"):
        await finish_within(NEVER, asyncio.sleep(0))


async def test_every_wait_of_the_work_gets_its_own_result() -> None:
    work = Work(gates=3)
    running = asyncio.create_task(finish_within(NEVER, work.run()))
    for number, gate in enumerate(work.gates):
        await work.waiting.wait()
        gate.set_result(number)
        await asyncio.sleep(0)

    assert await running == [0, 1, 2]


async def test_work_that_only_lets_others_run_goes_on() -> None:
    assert await finish_within(NEVER, asyncio.sleep(0, "here")) == "here"


@pytest.mark.parametrize("waits", [False, True])
async def test_errors_of_the_work_are_its_callers(*, waits: bool) -> None:
    gate = asyncio.get_running_loop().create_future() if waits else None
    running = asyncio.create_task(finish_within(NEVER, fail_after(gate)))
    await asyncio.sleep(0)
    if gate is not None:
        gate.set_result(None)

    with pytest.raises(LookupError, match="as it is"):
        await running


async def test_work_that_takes_too_long_is_cancelled_where_it_waits() -> None:
    work = Work()

    with pytest.raises(TimeoutError):
        await finish_within(AT_ONCE, work.run())

    assert isinstance(work.ended, asyncio.CancelledError)
    assert work.gates[0].cancelled()


async def test_a_cancelled_caller_cancels_the_work() -> None:
    work = Work()
    running = asyncio.create_task(finish_within(NEVER, work.run()))
    await work.waiting.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert isinstance(work.ended, asyncio.CancelledError)


async def test_work_may_have_a_timeout_of_its_own() -> None:
    async def wait_for_ever() -> str:
        try:
            async with asyncio.timeout(AT_ONCE):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "its own"
        return "none"

    assert await finish_within(NEVER, wait_for_ever()) == "its own"
