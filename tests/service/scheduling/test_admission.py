"""Who is taken in each phase, and who is waited for at the end."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import Draining, NotReady, QueueFull
from service.scheduling.admission import Admission

pytestmark = pytest.mark.anyio

SECONDS = 60.0


class Health:
    """What answers the requests; it lives until it is told otherwise."""

    lives = True

    def __call__(self) -> bool:
        return self.lives


def open_admission(health: Health | None = None) -> Admission:
    admission = Admission(7, health or Health())
    admission.open()
    return admission


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_nobody_is_taken_before_it_opens() -> None:
    admission = Admission(7, Health())
    assert admission.state == "loading"
    with pytest.raises(NotReady, match="loading"), admission.taking():
        pass
    admission.open()
    with admission.taking():
        assert admission.state == "ready"


async def test_nobody_is_taken_once_what_answers_has_died() -> None:
    health = Health()
    admission = open_admission(health)
    with admission.taking():
        health.lives = False
    assert admission.state == "failed"
    with pytest.raises(NotReady, match="failed"), admission.taking():
        pass


async def test_closing_takes_nobody_and_waits_for_the_last_to_leave() -> None:
    admission = open_admission()
    with admission.taking():
        with admission.taking():
            closing = asyncio.create_task(admission.close(in_seconds(SECONDS)))
            await asyncio.sleep(0)
            assert admission.state == "draining"
            with pytest.raises(Draining), admission.taking():
                pass
        await asyncio.sleep(0)
        assert not closing.done()
    await closing


async def test_closing_waits_no_longer_than_it_may() -> None:
    admission = open_admission()
    with admission.taking():
        await admission.close(in_seconds(0.01))
        assert admission.state == "draining"


async def test_request_that_fails_has_left() -> None:
    admission = open_admission()
    with pytest.raises(ZeroDivisionError), admission.taking():
        raise ZeroDivisionError
    await admission.close(in_seconds(SECONDS))


async def test_what_died_while_it_drains_is_still_draining() -> None:
    health = Health()
    admission = open_admission(health)
    await admission.close(in_seconds(SECONDS))
    health.lives = False
    assert admission.state == "draining"


async def test_refusal_tells_when_there_may_be_room() -> None:
    admission = open_admission()
    with admission.taking():
        for _ in range(3):
            admission.note_answer()
    refusal = admission.turn_away()
    assert isinstance(refusal, QueueFull)
    assert refusal.retry_after_seconds == 1.0  # three at once: the queue is empty in no time
