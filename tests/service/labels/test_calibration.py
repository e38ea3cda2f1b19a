import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.labels.calibration import find_best_f1

# Few distinct scores, so that ties are common.
_scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
_photos = st.lists(st.tuples(_scores, st.integers(0, 1)), min_size=1, max_size=30).filter(
    lambda photos: any(target for _, target in photos)
)


def _columns(
    photos: list[tuple[float, int]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    scores, targets = zip(*photos, strict=True)
    return np.array(scores), np.array(targets)


def _f1(scores: NDArray[np.float64], targets: NDArray[np.int64], threshold: float) -> float:
    predicted = scores >= threshold
    hits = int((predicted & (targets == 1)).sum())
    return 2 * hits / (int(predicted.sum()) + int(targets.sum()))


@given(_photos)
def test_no_threshold_gives_a_better_f1(photos: list[tuple[float, int]]) -> None:
    scores, targets = _columns(photos)
    best = find_best_f1(scores, targets)
    brute_force = max(_f1(scores, targets, threshold) for threshold in scores)
    assert _f1(scores, targets, best.threshold) == brute_force
    assert 0.0 <= best.threshold <= 1.0


@given(_photos)
def test_precision_and_recall_are_those_of_the_threshold(photos: list[tuple[float, int]]) -> None:
    scores, targets = _columns(photos)
    best = find_best_f1(scores, targets)
    predicted = scores >= best.threshold
    assert best.precision == pytest.approx(targets[predicted].mean())
    assert best.recall == pytest.approx(predicted[targets == 1].mean())


def test_threshold_lies_halfway_to_the_next_lower_score() -> None:
    best = find_best_f1(np.array([0.9, 0.8, 0.4, 0.1]), np.array([1, 1, 0, 0]))
    assert best.threshold == pytest.approx(0.6)


def test_threshold_between_neighbouring_scores_is_the_higher_one() -> None:
    lower, higher = 0.5, float(np.nextafter(0.5, 1.0))
    assert (lower + higher) / 2 == lower  # there is no number between them
    best = find_best_f1(np.array([lower, higher]), np.array([0, 1]))
    assert best.threshold == higher


def test_highest_threshold_of_equal_f1_is_taken() -> None:
    # 1 of 1 right (F1 2/3) and 2 of 4 right (F1 4/6).
    best = find_best_f1(np.array([0.9, 0.8, 0.7, 0.6, 0.1]), np.array([1, 0, 0, 1, 0]))
    assert best.threshold == pytest.approx(0.85)


def test_all_photos_are_predicted_if_all_have_the_label() -> None:
    best = find_best_f1(np.array([0.3, 0.2, 0.2]), np.array([1, 1, 1]))
    assert best.threshold == 0.2
    assert (best.precision, best.recall) == (1.0, 1.0)
