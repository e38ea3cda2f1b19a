"""Tests of timings and of predictions as JSON values."""

import base64
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from service.pipeline.explanation import Explanation
from service.pipeline.prediction import Prediction, Timings, add_up_timings
from service.pipeline.scoring import ScoredLabel
from service.stages import Stage

TIMINGS = Timings(1.0, 2.0, 3.0, 6.0)


@pytest.mark.parametrize(("place", "inference_ms"), [(1, 70), (0, 100)])
def test_decoding_time_is_subtracted_from_its_run(place: int, inference_ms: float) -> None:
    start = time.perf_counter() - 1
    stages = [Stage("queue", start, start + 0.02), Stage("encode", start + 0.05, start + 0.12)]
    stages.insert(place, Stage("decode", start, start + 0.03))
    timings = add_up_timings(stages, 0.1)
    found = (timings.decode_ms, timings.queue_ms, timings.inference_ms)
    assert found == pytest.approx((30, 20, inference_ms))
    assert 1000 <= timings.total_ms < 60_000


def test_described_prediction_has_maps_and_overlays_of_its_explained_labels_only() -> None:
    labels = (
        ScoredLabel("cat", 0.9, 0.5, True, "trained", True, "animal"),
        ScoredLabel("dog", 0.4, 0.5, False, "zero_shot", False),
    )
    cells = Explanation(np.eye(2, dtype=np.float32), None)
    prediction = Prediction(48, 32, labels, TIMINGS, (cells,))
    for _ in range(2):  # describing must not change the prediction
        assert from_json(to_json(prediction.describe(["cat.png"]))) == {
            "image": {"width": 48, "height": 32},
            "labels": [
                {
                    **{"label": "cat", "score": 0.9, "threshold": 0.5, "found": True},
                    **{"source": "trained", "calibrated": True, "category": "animal"},
                    **{"map": [[1, 0], [0, 1]], "overlay": "cat.png"},
                },
                {
                    **{"label": "dog", "score": 0.4, "threshold": 0.5, "found": False},
                    **{"source": "zero_shot", "calibrated": False},
                },
            ],
            "timings": {"decode_ms": 1, "queue_ms": 2, "inference_ms": 3, "total_ms": 6},
        }
    assert [label["label"] for label in prediction.describe()["labels"]] == ["cat", "dog"]


def test_described_embedding_is_a_list_or_base64_after_the_labels() -> None:
    embedding = np.array([0.6, -1 / 3], np.float32)
    plain = Prediction(1, 1, (), TIMINGS, embedding=embedding)
    found = plain.describe()
    assert list(found) == ["image", "labels", "embedding", "timings"]
    assert found["embedding"] == [0.60000002, -0.33333334]
    packed = replace(plain, packed=True).describe()["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == embedding.tolist()


@given(score=st.floats(0, 1), threshold=st.floats(0, 1))
@example(score=0.6295822900526222, threshold=0.6295822900526222)
@example(score=0.5, threshold=np.nextafter(0.5, 1))
@example(score=1.0, threshold=0.0)
@example(score=np.nan, threshold=0.0)
def test_described_scores_are_rounded_and_stay_at_or_above_their_thresholds(
    score: float, threshold: float
) -> None:
    label = ScoredLabel("cat", score, threshold, score >= threshold, "trained", True)
    (described,) = Prediction(1, 1, (label,), TIMINGS).describe()["labels"]
    for value, exact in ((described["score"], score), (described["threshold"], threshold)):
        assert value == pytest.approx(round(value, 6), rel=0, abs=0, nan_ok=True)
        assert value == pytest.approx(exact, abs=5.1e-7, nan_ok=True)
    if score >= threshold:
        assert described["score"] >= described["threshold"]
