"""Timings of a prediction: decoding counts once, in the run or before it."""

from __future__ import annotations

import time

import pytest

from service.pipeline.prediction import add_up_timings
from service.scheduling.stages import Stage


@pytest.mark.parametrize(("decoded_apart", "inference_ms"), [(False, 70), (True, 100)])
def test_decoding_is_taken_off_the_run_that_it_was_part_of(
    decoded_apart: bool, inference_ms: float
) -> None:
    start = time.perf_counter() - 1
    stages = [
        Stage("queue", start, start + 0.02),
        Stage("decode", start + 0.02, start + 0.05),
        Stage("encode", start + 0.05, start + 0.12),
    ]
    timings = add_up_timings(stages, 0.02, 0.1, decoded_apart=decoded_apart)
    assert timings.decode_ms == pytest.approx(30)
    assert timings.queue_ms == pytest.approx(20)
    assert timings.inference_ms == pytest.approx(inference_ms)
    assert 1000 <= timings.total_ms < 60_000
