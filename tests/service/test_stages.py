"""Stages are timed in their threads and collected only on demand."""

import threading

import pytest

from service.stages import collect_stages, time_stage


def test_stages_are_collected_in_their_order_with_their_times() -> None:
    with collect_stages() as stages:
        with time_stage("encode"):
            pass
        with time_stage("head"):
            pass
    assert [stage.name for stage in stages] == ["encode", "head"]
    encode, head = stages
    assert encode.started <= encode.ended <= head.started <= head.ended
    assert head.seconds == head.ended - head.started


def test_nothing_is_collected_of_failures_after_the_end_or_in_another_thread() -> None:
    def time_one() -> None:
        with time_stage("encode"):
            pass

    with collect_stages() as stages:
        thread = threading.Thread(target=time_one)
        thread.start()
        thread.join()
        with pytest.raises(ZeroDivisionError), time_stage("encode"):
            raise ZeroDivisionError
    time_one()
    assert stages == []
