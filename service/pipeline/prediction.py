"""A prediction: the answer for one photo, and where the time went.

In: what the stages of `pipeline.py` found, and when each of them ran. Out: a `Prediction`. Next:
`http/prediction_json.py` and `cli/`, which write it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from service.pipeline.explanation import Explanation
from service.pipeline.scoring import ScoredLabel
from service.scheduling.stages import Stage


@dataclass(frozen=True)
class Timings:
    """Where the time of one prediction went, milliseconds.

    Attributes:
        decode_ms: decoding and resizing, the wait for a decoding thread included.
        queue_ms: waiting for a worker.
        inference_ms: the run of the batch that this image was in, the other images' decoding
            included where the worker decodes them.
        total_ms: from the call to the answer.
    """

    decode_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one photo.

    Attributes:
        width: of the upright photo as it was sent, pixels.
        height: of the upright photo as it was sent, pixels.
        labels: the predicted labels, best first.
        timings: where the time went.
        explanations: of the first labels, in their order; none where the question asks for none.
    """

    width: int
    height: int
    labels: tuple[ScoredLabel, ...]
    timings: Timings
    explanations: tuple[Explanation, ...] = ()


def add_up_timings(
    stages: Sequence[Stage], queue_seconds: float, run_seconds: float, *, decoded_apart: bool
) -> Timings:
    """Returns the timings of a prediction that is ready now.

    Args:
        stages: of this photo, the first one first.
        queue_seconds: waiting for a worker.
        run_seconds: the whole run of the photo's batch.
        decoded_apart: whether the photo was decoded before that run, and not in it.
    """
    decode_seconds = sum(stage.seconds for stage in stages if stage.name == "decode")
    in_run = 0.0 if decoded_apart else decode_seconds
    return Timings(
        decode_ms=decode_seconds * 1000,
        queue_ms=queue_seconds * 1000,
        inference_ms=(run_seconds - in_run) * 1000,
        total_ms=(time.perf_counter() - stages[0].started) * 1000,
    )
