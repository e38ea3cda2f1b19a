"""The answer for one photo, how long each stage took, and both as JSON values."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
        width: of the upright photo, pixels.
        height: of the upright photo, pixels.
        labels: best first.
        timings: how long each stage took.
        explanations: of the first labels, in their order; empty unless the question asks.
    """

    width: int
    height: int
    labels: tuple[ScoredLabel, ...]
    timings: Timings
    explanations: tuple[Explanation, ...] = ()

    def describe(self, overlays: Iterable[str] = ()) -> dict[str, Any]:
        """Returns image size, labels with their maps, and timings as read-only JSON values.

        Args:
            overlays: path or URL of each explanation's overlay.
        """
        # Writing dataclasses, or `asdict`, takes three times as long.
        labels = [vars(label) for label in self.labels]
        for i, explanation in enumerate(self.explanations):
            labels[i] = {**labels[i], "map": explanation.list_cells()}
        for i, overlay in enumerate(overlays):
            labels[i] = {**labels[i], "overlay": overlay}
        return {
            "image": {"width": self.width, "height": self.height},
            "labels": labels,
            "timings": vars(self.timings),
        }


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
