"""Labels of an archive from its tags: planted labels are found, and nothing else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from service.archive.choice import ABSENT, PRESENT, REJECTED, UNKNOWN
from service.labels.sources.fit import Fit
from service.labels.sources.ridge import ArchiveFit, fit_labels, measure_ap
from service.labels.whitening import Vectors
from tests.support.label_store import make_photos

WIDTH, COUNT = 64, 300
WHITENING = make_photos(WIDTH).whitening
assert WHITENING is not None
PLANTED, TOLD, RANDOM = range(3)


def make_archive(count: int = COUNT) -> tuple[Vectors, NDArray[np.float32], NDArray[np.int8]]:
    """Returns photos with a label that only photos show, one that only its text shows, and none."""
    random = np.random.default_rng(1)
    rows = random.normal(0.5, 1, (count, WIDTH)).astype(np.float32)
    texts = random.normal(0, 1, (count, 3)).astype(np.float32)
    signs = np.zeros((count, 3), np.int8)
    signs[:, PLANTED] = random.random(count) < 0.15
    rows[signs[:, PLANTED] == PRESENT, :8] += 1.5
    signs[:, TOLD] = texts[:, TOLD] > 1.2
    signs[:, RANDOM] = random.random(count) < 0.1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), 3 * texts - 1, signs


ROWS, TEXTS, SIGNS = make_archive()
QUERIES = np.eye(3, 8, dtype=np.float32)


def fit(signs: NDArray[np.int8] = SIGNS, target: float | None = None) -> ArchiveFit:
    return fit_labels(ROWS, signs, WHITENING, (QUERIES, TEXTS), target)


def score(fits: tuple[Fit, ...], label: int) -> NDArray[np.float64]:
    """Returns the logits that a service computes."""
    figures = fits[label].figures
    values: NDArray[np.float64] = TEXTS[:, label].astype(np.float64) * figures.scale
    return values + figures.shift + ROWS @ fits[label].vector


def test_photos_and_texts_are_each_used_where_they_show_the_label() -> None:
    found = fit()
    assert found.told_apart.tolist() == [True, True, False]
    planted, told, _ = (each.figures for each in found.fits)
    assert planted.text_ap is not None
    assert planted.learnt_ap > planted.text_ap + 0.3
    assert told.learnt_ap > 0.9
    # Scores of photos that were not fitted are probabilities.
    assert found.scores.mean(axis=0) == pytest.approx((SIGNS == PRESENT).mean(axis=0), abs=0.03)
    sure = found.scores[:, PLANTED] > 0.5
    assert SIGNS[sure, PLANTED].mean() > 0.5
    served = 1 / (1 + np.exp(-score(found.fits, PLANTED)))
    assert np.corrcoef(served, found.scores[:, PLANTED])[0, 1] > 0.8
    point = planted.points["calibrated"]
    reached = found.scores[:, PLANTED] >= point.threshold
    assert SIGNS[reached, PLANTED].mean() == pytest.approx(point.precision)


def test_unknown_signs_count_for_nothing_and_rejected_ones_lower_the_score() -> None:
    before, unknown, rejected = SIGNS.copy(), SIGNS.copy(), SIGNS.copy()
    some = np.flatnonzero(SIGNS[:, PLANTED] == PRESENT)[:12]
    unknown[some, PLANTED] = UNKNOWN
    rejected[some, PLANTED] = REJECTED
    known, less, least = (
        score(fit(s).fits, PLANTED)[some].mean() for s in (before, unknown, rejected)
    )
    assert known > less > least
    figures = fit(rejected).fits[PLANTED].figures
    assert (figures.negative, figures.photos) == (12, COUNT)
    assert fit(unknown).fits[PLANTED].figures.photos == COUNT - 12


def test_threshold_reaches_the_wanted_precision_or_says_that_it_was_not_reached() -> None:
    found = fit(target=0.8)
    told, random = (found.fits[label].figures.points for label in (TOLD, RANDOM))
    assert told["calibrated"].precision is not None
    assert told["calibrated"].precision >= 0.8
    assert random["calibrated"] == random["balanced"], "photos do not show that it is reached"
    assert not random["precise"].is_own


@pytest.mark.parametrize("count", [20, 60])
def test_few_photos_and_labels_without_a_text_are_fitted_too(count: int) -> None:
    rows, _, signs = make_archive(count)
    found = fit_labels(rows, signs[:, :1], WHITENING)
    figures = found.fits[0].figures
    assert (figures.text_ap, figures.scale) == (None, 0.0)
    assert np.isfinite(found.scores).all()


def test_bursts_and_copies_next_to_each_other_do_not_tell_random_tags_apart() -> None:
    rows, signs = (np.repeat(each[:150], 2, axis=0) for each in (ROWS, SIGNS[:, RANDOM:]))
    assert not fit_labels(rows, signs, WHITENING).told_apart.any()


def test_direction_that_random_tags_reverse_by_chance_has_no_weight() -> None:
    random = np.random.default_rng(2)
    for count in (10, 20, 40, 60):
        signs = (random.random((count, 6)) < 0.4).astype(np.int8)
        signs[:2] = PRESENT
        rows = random.normal(0, 1, (count, WIDTH)).astype(np.float32)
        for fit, tags in zip(fit_labels(rows, signs, WHITENING).fits, signs.T, strict=True):
            values = rows @ fit.vector
            assert values[tags == PRESENT].mean() >= values[tags == ABSENT].mean()


def test_text_that_says_nothing_of_the_photos_has_no_weight() -> None:
    flat = np.where(np.arange(3) == PLANTED, np.float32(2.5), TEXTS)
    found = fit_labels(ROWS, SIGNS, WHITENING, (QUERIES, flat))
    assert (found.fits[PLANTED].figures.scale, found.told_apart[PLANTED]) == (0.0, True)


def test_average_precision_is_that_of_the_definition() -> None:
    truths = np.array([True, False, True, False])
    assert measure_ap(np.array([0.9, 0.8, 0.7, 0.1]), truths) == pytest.approx((1 + 2 / 3) / 2)
    assert measure_ap(np.zeros(4), truths) == measure_ap(np.zeros(4), truths[::-1]) == 0.5
