"""Tests of timings and of predictions as JSON values."""

import time

import numpy as np
import pytest

from service.pipeline.explanation import Explanation
from service.pipeline.prediction import Prediction, Timings, add_up_timings
from service.pipeline.scoring import ScoredLabel
from service.scheduling.stages import Stage


@pytest.mark.parametrize(("decoded_apart", "inference_ms"), [(False, 70), (True, 100)])
def test_decoding_time_is_subtracted_from_its_run(decoded_apart: bool, inference_ms: float) -> None:
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


def test_described_prediction_has_maps_and_overlays_of_its_explained_labels_only() -> None:
    labels = (
        ScoredLabel("cat", 0.9, 0.5, "trained", calibrated=True),
        ScoredLabel("dog", 0.6, 0.5, "text", calibrated=False),
    )
    cells = Explanation(np.eye(2, dtype=np.float32), None)
    prediction = Prediction(48, 32, labels, Timings(1.0, 2.0, 3.0, 6.0), (cells,))
    for _ in range(2):  # describing must not change the prediction
        assert prediction.describe(["cat.png"]) == {
            "image": {"width": 48, "height": 32},
            "labels": [
                {**vars(labels[0]), "map": [[1, 0], [0, 1]], "overlay": "cat.png"},
                {
                    **{"label": "dog", "score": 0.6, "threshold": 0.5, "source": "text"},
                    "calibrated": False,
                },
            ],
            "timings": {"decode_ms": 1, "queue_ms": 2, "inference_ms": 3, "total_ms": 6},
        }
    assert [label["label"] for label in prediction.describe()["labels"]] == ["cat", "dog"]
