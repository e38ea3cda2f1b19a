"""The answer for one photo, with the time of each stage, and both as JSON values."""

import base64
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.pipeline.explanation import Explanation
from service.pipeline.scoring import ScoredLabel
from service.stages import Stage


@dataclass(frozen=True)
class Timings:
    """Milliseconds; decoding includes resizing and its wait, inference is the run of the batch."""

    decode_ms: float
    queue_ms: float
    inference_ms: float  # less the photo's own decoding in it
    total_ms: float


@dataclass(frozen=True)
class Prediction:
    """The answer for one photo; `width` and `height` are pixels of the upright photo."""

    width: int
    height: int
    labels: tuple[ScoredLabel, ...]  # best first
    timings: Timings
    explanations: tuple[Explanation, ...] = ()  # of the first labels, if the question asks
    embedding: NDArray[np.float32] | None = None  # [D], of length 1, if the question asks
    packed: bool = False  # whether `describe` writes the embedding in base64

    def describe(self, overlays: Iterable[str] = ()) -> dict[str, Any]:
        """Returns read-only JSON values; `overlays` are paths or URLs of the overlays.

        Scores and thresholds are rounded to six decimals, maps to three. The labels are a
        generator: other threads run while `to_json` writes many.
        """
        answer: dict[str, Any] = {
            "image": {"width": self.width, "height": self.height},
            "labels": self._describe_labels(overlays),
        }
        if self.embedding is not None:
            answer["embedding"] = write_embedding(self.embedding, packed=self.packed)
        answer["timings"] = vars(self.timings)
        return answer

    def _describe_labels(self, overlays: Iterable[str]) -> Iterator[dict[str, Any]]:
        explained = zip_longest(self.explanations, overlays)
        for label in self.labels:
            described: dict[str, Any] = {
                "label": label.label,
                "score": _round(label.score),
                "threshold": _round(label.threshold),
                "found": label.found,
                "source": label.source,
                "calibrated": label.calibrated,
            }
            if label.translation is not None:
                described = {"label": label.label, "translation": label.translation, **described}
            for name in ("parents", "parent_translations"):
                if (values := getattr(label, name)) is not None:
                    described[name] = values
            if label.category is not None:
                described["category"] = label.category
            explanation, overlay = next(explained, (None, None))
            if explanation is not None:
                described["map"] = explanation.map.astype(float).round(3).tolist()
            if overlay is not None:
                described["overlay"] = overlay
            yield described


def write_embedding(embedding: NDArray[np.float32], *, packed: bool) -> list[float] | str:
    """Returns numbers rounded to eight decimals, or little-endian float32 in base64."""
    if packed:
        return base64.b64encode(embedding.astype("<f4").tobytes()).decode()
    numbers: list[float] = embedding.astype(float).round(8).tolist()
    return numbers


def _round(value: float) -> float:
    """Rounds to six decimals; a score at or above its threshold stays there."""
    # Half the time of `round`, 0.5 us a label; NaN stays NaN.
    return (value * 1e6 + 0.5) // 1 / 1e6


def add_up_timings(stages: Sequence[Stage], run_seconds: float) -> Timings:
    """Returns the timings of a prediction that is ready now, from its photo's stages in order.

    `run_seconds` is the whole run of the batch, which decodes photos that are not decoded earlier.
    """
    decode_seconds = queue_seconds = 0.0
    for stage in stages:
        if stage.name == "decode":
            decode_seconds += stage.seconds
        elif stage.name == "queue":
            queue_seconds = stage.seconds
    in_run = 0.0 if stages[0].name == "decode" else decode_seconds
    return Timings(
        decode_ms=decode_seconds * 1000,
        queue_ms=queue_seconds * 1000,
        inference_ms=(run_seconds - in_run) * 1000,
        total_ms=(time.perf_counter() - stages[0].started) * 1000,
    )
