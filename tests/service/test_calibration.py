import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.card import Calibration
from service.calibration import (
    MIN_POSITIVES,
    bin_scores,
    find_threshold,
    find_thresholds,
    fit_calibration,
    make_precise,
    measure_error,
    move_threshold,
)

# Few distinct scores, so that ties are common.
_scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
_photos = st.lists(st.tuples(_scores, st.integers(0, 1)), min_size=1, max_size=30).filter(
    lambda photos: any(target for _, target in photos)
)


def _columns(photos: list[tuple[float, int]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    scores, targets = zip(*photos, strict=True)
    return np.array(scores), np.array(targets)


def _f1(scores: NDArray[np.float64], targets: NDArray[np.int64], threshold: float) -> float:
    predicted = scores >= threshold
    hits = int((predicted & (targets == 1)).sum())
    return 2 * hits / (int(predicted.sum()) + int(targets.sum()))


@given(_photos)
def test_no_threshold_gives_a_better_f1(photos: list[tuple[float, int]]) -> None:
    scores, targets = _columns(photos)
    best = find_threshold(scores, targets)
    brute_force = max(_f1(scores, targets, threshold) for threshold in scores)
    assert _f1(scores, targets, best.threshold) == brute_force


@given(_photos, st.none() | st.floats(0, 1))
def test_point_is_what_its_threshold_gives(
    photos: list[tuple[float, int]], wanted: float | None
) -> None:
    scores, targets = _columns(photos)
    point = find_threshold(scores, targets, wanted=wanted)
    assert 0.0 <= point.threshold <= 1.0
    predicted = scores >= point.threshold
    assert point.precision == pytest.approx(targets[predicted].mean())
    assert point.recall == pytest.approx(predicted[targets == 1].mean())
    best = find_threshold(scores, targets)
    if wanted is None:
        assert point == best
        return
    least = _f1(scores, targets, best.threshold) - 0.2
    assert _f1(scores, targets, point.threshold) >= least - 1e-9
    if (scores >= wanted).any() and _f1(scores, targets, wanted) >= least:
        assert predicted.tolist() == (scores >= wanted).tolist()


def test_few_positives_choose_thresholds_that_are_better_on_other_photos() -> None:
    random = np.random.default_rng(0)
    targets = (random.random((8_000, 40)) < 0.02).astype(np.int64)
    scores = 1 / (1 + np.exp(4 - 3 * targets - random.normal(0, 1.3, targets.shape)))
    names = [str(column) for column in range(40)]
    here = slice(0, 400)  # about 8 positives a label
    found = find_thresholds(names, scores[here], targets[here])
    chosen, noisy = [], []
    for name, point in found.items():
        column = int(name)
        few, truths = scores[here, column], targets[here, column]
        best = max(few, key=lambda threshold: _f1(few, truths, threshold))
        others = scores[400:, column], targets[400:, column]
        chosen.append(_f1(*others, point.threshold))
        noisy.append(_f1(*others, best))
    assert np.mean(chosen) > np.mean(noisy) + 0.02


def test_rare_label_is_nearer_to_the_threshold_of_all_labels() -> None:
    random = np.random.default_rng(0)
    targets = (random.random((6_000, 2)) < 0.2).astype(np.int64)
    targets[40:, 1] = 0  # about 8 positives
    scores = 1 / (1 + np.exp(2 - 3 * targets - random.normal(0, 1.3, targets.shape)))
    best = [find_threshold(scores[:, i], targets[:, i]).threshold for i in range(2)]
    shared = find_threshold(scores.ravel(), targets.ravel()).threshold
    often, rare = (point.threshold for point in find_thresholds("ab", scores, targets).values())
    assert often == best[0]  # more than 1,000 positives
    assert abs(rare - shared) < abs(best[1] - shared)


@given(_photos, st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_wanted_recall_lowers_the_best_threshold_no_further_than_it_has_to(
    photos: list[tuple[float, int]], target: float
) -> None:
    scores, targets = _columns(photos)
    best, point = find_threshold(scores, targets), find_threshold(scores, targets, None, target)
    assert point.recall >= target
    above = scores > scores[scores >= point.threshold].min()
    assert point == best or targets[above].sum() < target * targets.sum()


@pytest.mark.parametrize(
    ("scores", "targets", "threshold"),
    [
        ([0.9, 0.8, 0.4, 0.1], [1, 1, 0, 0], (0.8 + 0.4) / 2),  # halfway to the next lower score
        ([0.5, np.nextafter(0.5, 1)], [0, 1], np.nextafter(0.5, 1)),  # no number between them
        ([0.9, 0.8, 0.7, 0.6, 0.1], [1, 0, 0, 1, 0], (0.9 + 0.8) / 2),  # F1 of 2/3 before 4/6
        ([0.3, 0.2, 0.2], [1, 1, 1], 0.2),
    ],
)
def test_best_threshold_is_the_highest_one(
    scores: list[float], targets: list[int], threshold: float
) -> None:
    assert find_threshold(np.array(scores), np.array(targets)).threshold == threshold


@given(_photos, st.floats(0.05, 0.95))
def test_wanted_precision_takes_the_lowest_threshold_that_surely_reaches_it(
    photos: list[tuple[float, int]], target: float
) -> None:
    scores, targets = _columns(photos)

    def is_sure(threshold: float) -> bool:  # Wilson's lower bound by its defining equation
        predicted = scores >= threshold
        share, count = targets[predicted].mean(), int(predicted.sum())
        error = 1.645 * np.sqrt(target * (1 - target) / count)
        return bool(share >= target and share - target >= error - 1e-12)

    point = find_threshold(scores, targets, target)
    sure = [threshold for threshold in scores if is_sure(threshold)]
    assert (point is None) == (not sure)
    if point is not None:
        assert (scores >= point.threshold).tolist() == (scores >= min(sure)).tolist()
        assert point.precision >= target


@given(_photos, st.floats(0, 1), st.booleans())
def test_precise_threshold_is_raised_until_photos_and_scores_are_sure(
    photos: list[tuple[float, int]], least: float, calibrated: bool
) -> None:
    scores, targets = _columns(photos)
    if (point := make_precise(least, scores, targets, calibrated=calibrated)) is not None:
        answered = scores >= point.threshold
        assert point.threshold >= least
        assert point.precision == targets[answered].mean() >= 0.9
        assert not calibrated or scores[answered].mean() >= 0.9 - 1e-9


@pytest.mark.parametrize(("count", "score"), [(7, 0.95), (6, 0.95), (30, 0.85)])
def test_few_answers_or_doubtful_scores_do_not_reach_precise(count: int, score: float) -> None:
    scores, targets = np.append(np.full(count, score), 0.1), np.append(np.ones(count, int), 0)
    made = [make_precise(0.2, scores, targets, calibrated=known) for known in (False, True)]
    assert [point is not None for point in made] == [count >= 7, count >= 7 and score >= 0.9]


def test_precise_thresholds_of_few_photos_hold_on_others() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(-3, 3, (40, 3_000))
    scores = 1 / (1 + np.exp(-logits))
    targets = (random.random(scores.shape) < scores).astype(np.int64)
    shares = []
    for column, truths in zip(scores, targets, strict=True):  # about 50 photos show each label
        if point := make_precise(0.0, column[:300], truths[:300], calibrated=True):
            shares.append(truths[300:][column[300:] >= point.threshold].mean())
    assert len(shares) >= 30
    assert np.mean(shares) >= 0.9


def _draw(
    scale: NDArray[np.float64], shift: float, count: int = 4000
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draws logits [n, L] and targets whose probability is sigmoid(scale * logit + shift)."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (count, len(scale)))
    shares = 1 / (1 + np.exp(-(scale * logits + shift)))
    return logits, (random.random(logits.shape) < shares).astype(np.int64)


def test_fit_finds_the_pair_that_made_the_targets() -> None:
    logits, targets = _draw(np.full(4, 0.5), -2.0)
    fit = fit_calibration(logits, targets)
    assert (fit.shared.scale, fit.shared.shift) == pytest.approx((0.5, -2.0), abs=0.06)
    assert fit.shared.error_after < 0.01 < 0.1 < fit.shared.error_before
    assert sum(entry.scores for entry in fit.shared.bins) == logits.size


def test_labels_that_differ_get_their_own_pairs() -> None:
    logits, targets = _draw(np.array([0.4, 2.5]), -1.0)
    fit = fit_calibration(logits, targets)
    assert fit.stack()[0] == pytest.approx([0.4, 2.5], rel=0.1)
    one = fit_calibration(logits, targets, per_label=False)
    assert one.labels == (None, None)


def test_label_with_few_positives_takes_the_pair_of_all() -> None:
    logits, targets = _draw(np.array([0.4, 2.5, 1.0]), -1.0)
    targets[:, 2] = 0
    targets[: MIN_POSITIVES - 1, 2] = 1
    fit = fit_calibration(logits, targets)
    assert [pair is None for pair in fit.labels] == [False, False, True]


def test_scores_that_are_probabilities_already_are_left_alone() -> None:
    logits, targets = _draw(np.full(3, 0.7), 0.3)
    assert fit_calibration(logits, targets, per_label=False, current=0.7 * logits + 0.3) is None


@pytest.mark.parametrize("positives", [0, 19, 4000 - 19])
def test_too_few_photos_fit_nothing(positives: int) -> None:
    logits = np.random.default_rng(0).normal(size=(4000, 1))
    targets = np.zeros((4000, 1), np.int64)
    targets[:positives] = 1
    assert fit_calibration(logits, targets) is None
    assert fit_calibration(logits[:9], targets[:9]) is None


def test_logits_that_fall_with_the_label_fit_nothing() -> None:
    logits, targets = _draw(np.full(2, -1.0), 0.0)
    assert fit_calibration(logits, targets) is None


@pytest.mark.parametrize("size", [0.1, 1.0, 1e3])
def test_perfectly_separated_photos_fit_a_finite_pair(size: float) -> None:
    logits = np.repeat([[-size], [size]], 40, axis=0)
    fit = fit_calibration(logits, (logits > 0).astype(np.int64))
    # An enormous logit is as sure as it can be: there is nothing to improve.
    assert (fit is None) if size == 1e3 else (fit is not None and fit.shared.scale > 0)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_error_is_the_mean_gap_over_the_bins(photos: list[tuple[float, int]]) -> None:
    scores, targets = _columns(photos)
    gaps = [
        abs((scores[here] - targets[here]).sum())
        for number in range(10)
        if (here := np.minimum((scores * 10).astype(int), 9) == number).any()
    ]
    bins = bin_scores(scores, targets)
    assert measure_error(bins) == pytest.approx(sum(gaps) / len(scores))
    assert sum(entry.scores for entry in bins) == len(scores)


@given(st.floats(0.01, 0.99), st.floats(0.2, 3), st.floats(-2, 2))
def test_moved_threshold_decides_the_same_photos(
    threshold: float, scale: float, shift: float
) -> None:
    before, after = Calibration(scale=0.5, shift=-1.0), Calibration(scale=scale, shift=shift)
    logits = np.linspace(-12, 12, 241)
    moved = move_threshold(threshold, before, after)

    def decide(pair: Calibration, least: float) -> NDArray[np.bool_]:
        return 1 / (1 + np.exp(-(pair.scale * logits + pair.shift))) >= least

    # A logit on the threshold itself may fall to either side by rounding.
    assert (decide(before, threshold) != decide(after, moved)).sum() <= 1
    assert move_threshold(0.0, before, after) == 0.0
    assert move_threshold(1.0, before, after) == 1.0
    if moved < 1 - 1e-6:  # nearer to 1, floats are too coarse to move it back
        assert move_threshold(moved, after, before) == pytest.approx(threshold)
