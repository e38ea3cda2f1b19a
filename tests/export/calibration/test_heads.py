from pathlib import Path

import numpy as np
import pytest

from export.accuracy import ScoredPhotos
from export.calibration.heads import (
    CalibrationOptions,
    calibrate_open,
    calibrate_trained,
    calibrate_trained_names,
    score_open,
)
from export.sources.labelled_photos import LabelledPhotos, PhotoReader
from service.bundle.card import Label, TrainedHead
from service.calibration import (
    MIN_POSITIVES,
    PRECISE,
    find_threshold,
    find_thresholds,
    make_precise,
)
from service.labels.label_set import make_trained_set
from service.pipeline.scoring import compute_scores
from tests.export.tiny_network import CONTRACT
from tests.support.tiny_bundle import OPEN_HEAD

NAMES = ("red", "green", "blue")
LABELS = tuple(Label(name=name, description=f"{name} things") for name in NAMES)
TRAINED = TrainedHead(kind="gap", num_labels=3, activation="sigmoid")
RAW = CalibrationOptions(raw_scores=True)


def make_scored(
    scale: float = 2.0,
    shift: float = -1.0,
    *,
    photos: int = 600,
    seed: int = 0,
    blank: tuple[float, ...] = (-9.0, -9.0, -9.0),
) -> ScoredPhotos:
    """Returns logits whose probability is sigmoid(scale * logit + shift), and targets."""
    stream = np.random.default_rng(seed)
    logits = stream.normal(0, 2, (photos, len(NAMES))).astype(np.float32)
    chances = 1 / (1 + np.exp(-(scale * logits + shift)))
    targets = (stream.random(logits.shape) < chances).astype(np.int64)
    paths = (Path("a.png"),) * photos
    photos_made = LabelledPhotos("made/val", NAMES, paths, targets, PhotoReader(CONTRACT))
    return ScoredPhotos(photos_made, logits, np.array([blank], np.float32))


@pytest.mark.parametrize("options", [CalibrationOptions(), RAW])
def test_thresholds_of_trained_labels_are_of_best_f1_on_the_served_scores(
    options: CalibrationOptions,
) -> None:
    scored = make_scored()
    head, labels = calibrate_trained(TRAINED, LABELS, scored, options)
    assert (head.calibration is None) == options.raw_scores
    served = make_trained_set(labels, head)
    scores = compute_scores(scored.logits, "sigmoid", served.calibration)
    found = find_thresholds(NAMES, scores, scored.photos.targets)
    for label in labels:
        best = found[label.name]
        assert label.threshold == pytest.approx(best.threshold)
        assert (label.precision, label.recall) == (best.precision, best.recall)


@pytest.mark.parametrize(
    "options", [CalibrationOptions(), RAW, CalibrationOptions(precision_target=0.6)]
)
def test_threshold_is_above_blank_photos_if_that_costs_little(options: CalibrationOptions) -> None:
    plain = calibrate_trained(TRAINED, LABELS, make_scored(), options)[1]
    scored = make_scored(blank=(0.8, -9.0, 9.0))
    head, labels = calibrate_trained(TRAINED, LABELS, scored, options)
    served = make_trained_set(labels, head)
    on_blank = compute_scores(scored.blank, "sigmoid", served.calibration) >= served.thresholds
    assert on_blank.tolist() == [[False, False, True]]
    assert labels[1:] == plain[1:]
    raised, before = labels[0], plain[0]
    assert raised.threshold > before.threshold
    answered = (
        compute_scores(scored.logits, "sigmoid", served.calibration)[:, 0] >= raised.threshold
    )
    shown = scored.photos.targets[:, 0] == 1
    assert raised.precision == shown[answered].mean()
    assert raised.recall == answered[shown].mean()


@pytest.mark.parametrize("options", [CalibrationOptions(precision_target=0.9), RAW])
def test_thresholds_by_purpose_are_measured_on_the_served_scores(
    options: CalibrationOptions,
) -> None:
    scored = make_scored(blank=(0.8, -9.0, 9.0))
    targets = scored.photos.targets
    targets[targets[:, 2].nonzero()[0][MIN_POSITIVES - 1 :], 2] = 0
    head, labels = calibrate_trained(TRAINED, LABELS, scored, options)
    opened = calibrate_open(OPEN_HEAD, scored, options)
    assert opened.by_purpose["calibrated"].threshold == opened.threshold
    assert labels[2].by_purpose == {}
    scores = compute_scores(scored.logits, "sigmoid", make_trained_set(labels, head).calibration)
    for purpose, target in (("balanced", 0.0), ("recall", 0.75)):
        points = [label.by_purpose.get(purpose) for label in labels]
        assert points[1] == find_thresholds(NAMES, scores, targets, None, target)["green"]
        assert points[0].recall >= target
        thresholds = [(point or head.by_purpose[purpose]).threshold for point in points]
        shared = opened.by_purpose[purpose]
        answered = score_open(scored.logits, opened.calibration) >= shared.threshold
        for chosen, measured in (
            (scores >= thresholds, head.by_purpose[purpose]),
            (answered, shared),
        ):
            assert measured.precision == targets[chosen].mean()
            assert measured.recall == chosen[targets == 1].mean()
    targets[:] = 0
    assert [*calibrate_trained(TRAINED, LABELS, scored, options)[0].by_purpose] == ["calibrated"]


@pytest.mark.parametrize("options", [CalibrationOptions(), RAW])
def test_label_that_does_not_reach_precise_has_the_heads_threshold(
    options: CalibrationOptions, caplog: pytest.LogCaptureFixture
) -> None:
    scored = make_scored()
    scored.logits[:, 2] = 0  # says nothing
    targets = scored.photos.targets
    head, labels = calibrate_trained(TRAINED, LABELS, scored, options)
    used = make_trained_set(labels, head).use("precise")
    assert used.calibrated.tolist() == [True, True, False]
    assert used.thresholds[2] == head.by_purpose["precise"].threshold
    scores, known = compute_scores(scored.logits, "sigmoid", used.calibration), options != RAW
    least = labels[1].by_purpose["balanced"].threshold
    point = make_precise(least, scores[:, 1], targets[:, 1], calibrated=known)
    assert labels[1].by_purpose["precise"] == point
    opened = calibrate_open(OPEN_HEAD, scored, options).by_purpose
    for measured in (head.by_purpose["precise"], opened["precise"]):
        assert measured.precision >= PRECISE
    scored.logits[:] = 0
    assert "precise" not in calibrate_open(OPEN_HEAD, scored, CalibrationOptions()).by_purpose
    assert "precise: not reached by all labels together" in caplog.text


def test_softmax_is_never_calibrated() -> None:
    softmax = TRAINED.model_copy(update={"activation": "softmax"})
    head, labels = calibrate_trained(softmax, LABELS, make_scored(), CalibrationOptions())
    assert head.calibration is None
    assert all(label.calibration is None for label in labels)
    assert all(label.threshold is not None for label in labels)


def test_precision_target_sets_the_thresholds_of_labels_that_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scored = make_scored()
    scored.logits[:, 2] = 0  # says nothing
    caplog.set_level("INFO", "export")
    target = CalibrationOptions(precision_target=0.9)
    head, labels = calibrate_trained(TRAINED, LABELS, scored, target)
    assert [label.threshold is not None for label in labels] == [True, True, False]
    assert all(label.precision >= 0.9 for label in labels[:2] if label.precision is not None)
    served = make_trained_set(labels, head)
    scores = compute_scores(scored.logits, "sigmoid", served.calibration)
    point = find_threshold(scores.ravel(), scored.photos.targets.ravel(), 0.9)
    assert head.threshold == point.threshold == served.thresholds[2]
    assert "precision 0.9: 2 of 3 labels reach it" in caplog.text
    unreached = CalibrationOptions(precision_target=0.99)
    head, labels = calibrate_trained(TRAINED, LABELS, make_scored(scale=0.01), unreached)
    assert head.threshold == 0.5
    assert all(label.threshold is None for label in labels)


@pytest.mark.parametrize(
    ("options", "photos"),
    [(RAW, 600), (CalibrationOptions(), 9), (CalibrationOptions(precision_target=0.8), 600)],
)
def test_open_head_has_a_threshold_on_raw_scores_or_with_a_precision_target(
    options: CalibrationOptions, photos: int
) -> None:
    scored = make_scored(photos=photos)
    head = calibrate_open(OPEN_HEAD, scored, options)
    scores, target = score_open(scored.logits, head.calibration), options.precision_target
    best = find_threshold(scores.ravel(), scored.photos.targets.ravel(), target)
    assert (head.calibration is None, head.threshold) == (target is None, best.threshold)


def test_open_head_has_one_calibration_and_a_sigmoid_and_needs_no_threshold() -> None:
    softmax = OPEN_HEAD.model_copy(update={"activation": "softmax"})
    for before in (OPEN_HEAD, softmax):
        head = calibrate_open(before, make_scored(), CalibrationOptions())
        assert (head.calibration.scale, head.calibration.shift) == pytest.approx((2, -1), abs=0.2)
        assert (head.activation, head.threshold) == ("sigmoid", 0.5)
    assert calibrate_open(softmax, make_scored(), RAW) == softmax


def test_trained_names_have_their_own_calibration_only_if_it_is_better_than_others() -> None:
    head = calibrate_open(OPEN_HEAD, make_scored(), CalibrationOptions())
    assert calibrate_trained_names(head, make_scored(seed=1, photos=60)).trained_names is None
    other = calibrate_trained_names(head, make_scored(1.0, 2.0)).trained_names
    assert (other.scale, other.shift) == pytest.approx((1, 2), abs=0.3)
    # They keep it unless the labels become raw.
    both = calibrate_trained_names(head, make_scored(1.0, 2.0))
    again = calibrate_open(both, make_scored(seed=1), CalibrationOptions())
    assert again.trained_names == both.trained_names
    raw = calibrate_open(both, make_scored(), RAW)
    assert raw.trained_names is None
    assert calibrate_trained_names(raw, make_scored(1.0, 2.0)).trained_names is None
