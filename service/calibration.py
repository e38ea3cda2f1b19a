"""Calibration on labelled photos: scores that are probabilities, and thresholds on them.

Scores are fitted by log loss, as in Platt scaling. A scale and a shift keep the order of the photos
of each label, so that average precisions do not change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Calibration, HeadCalibration, MeasuredThreshold, ReliabilityBin

PRECISE = 0.9
"""Precision that the purpose `precise` is to reach."""
RECALL = 0.75
"""Recall that the purpose `recall` is to reach."""

MIN_POSITIVES = 5
"""Fewest photos with a label for which it gets a threshold or a calibration of its own."""

NUM_BINS = 10

# Fewest pairs of a photo and its label that a head is calibrated on.
_MIN_PAIRS = 20
_FOLDS = 5
# Weights of the priors: a head's towards raw scores, and a label's towards its head's. Of 1, 3, 10,
# 30 and 100, 10 had the lowest log loss on other photos (800 photos, 18 labels).
_HEAD_PRIOR = 1.0
_LABEL_PRIOR = 10.0
_MAX_STEPS = 50
# A label's threshold of best F1 is the mean over bootstrap samples, mixed with that of all labels,
# which weighs as much as so many positives of the label: on other photos, F1 without `person` is
# 1.4 points higher than with the best threshold of the photos that choose (18 labels, 800 photos
# choose). Of 20, 40, 80 and 160 positives, 40 was best. Many positives have little noise. A label
# on another scale than the others loses at most so much of its best F1.
_SAMPLES = 30
_MOST_LOST = 0.2
_SHARED_WEIGHT = 40.0
_MANY_POSITIVES = 1_000
# One-sided confidences of 95 % and 80 %, in standard deviations: a precision of 0.9 needs 25 of 25
# answers or 7 of 7.
_CONFIDENCE = 1.645
_PRECISE_CONFIDENCE = 0.84

Logits = NDArray[np.floating]
Scores = NDArray[np.float64]
Targets = NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """Calibrations of L labels."""

    shared: HeadCalibration  # of the labels without their own
    labels: tuple[Calibration | None, ...]  # their own

    @property
    def figures(self) -> str:
        """The errors in words."""
        before, after = self.shared.error_before, self.shared.error_after
        return f"calibration error {before:.3f} before, {after:.3f} after"

    def stack(self) -> NDArray[np.float64]:
        """Returns scales and shifts, float64 [2, L]."""
        pairs = [calibration or self.shared for calibration in self.labels]
        return np.array([(pair.scale, pair.shift) for pair in pairs]).T


def fit_calibration(
    logits: Logits,
    targets: Targets,
    dataset: str = "",
    *,
    per_label: bool = True,
    current: Scores | None = None,
) -> Fit | None:
    """Fits scale and shift of logits [n, L] to targets 0 or 1 [n, L] of photos of a data set.

    All labels share one pair. With `per_label`, labels also get their own, shrunk towards the
    shared one, if that lowers the log loss on photos that were not fitted; labels with fewer than
    `MIN_POSITIVES` photos with them or without them do not. Returns None if there are too few
    photos, or if the log loss of `current`, the logits that are served now, is not lowered;
    `current` defaults to `logits`.
    """
    raw: Scores = logits.astype(np.float64)
    served = raw if current is None else current
    positives = int(targets.sum())
    if min(positives, targets.size - positives) < _MIN_PAIRS or len(raw) < 2 * _FOLDS:
        return None
    folds = np.random.default_rng(0).permutation(len(raw)) % _FOLDS
    by_pair, by_label = np.empty_like(raw), np.empty_like(raw)
    for fold in range(_FOLDS):
        others, here = folds != fold, folds == fold
        pair = _fit(raw[others], targets[others], _HEAD_PRIOR)
        if pair is None:
            return None
        by_pair[here] = _apply(raw[here], pair)
        for column, label_pair in enumerate(_fit_labels(raw[others], targets[others], shared=pair)):
            by_label[here, column] = _apply(raw[here, column], label_pair or pair)
    is_own = per_label and _log_loss(by_label, targets) < _log_loss(by_pair, targets)
    calibrated = by_label if is_own else by_pair
    fitted = _fit(raw, targets, _HEAD_PRIOR)
    if fitted is None or _log_loss(served, targets) <= _log_loss(calibrated, targets):
        return None
    labels = _fit_labels(raw, targets, shared=fitted)
    bins = bin_scores(sigmoid(calibrated), targets)
    shared = HeadCalibration(
        scale=fitted.scale,
        shift=fitted.shift,
        dataset=dataset,
        images=len(raw),
        labels=len(labels),
        error_before=measure_error(bin_scores(sigmoid(served), targets)),
        error_after=measure_error(bins),
        bins=bins,
    )
    return Fit(shared, labels if is_own else (None,) * len(labels))


def move_threshold(threshold: float, before: Calibration, after: Calibration) -> float:
    """Returns the threshold on the scores of calibration `after` that the same photos reach."""
    if threshold in (0.0, 1.0):  # all photos, and none
        return threshold
    logit = (math.log(threshold / (1 - threshold)) - before.shift) / before.scale
    return float(sigmoid(np.array(after.scale * logit + after.shift)))


def bin_scores(scores: Scores, targets: Targets) -> tuple[ReliabilityBin, ...]:
    """Returns the reliability of scores 0..1 and targets 0/1 of one shape, in ten equal bins."""
    bins = np.minimum((scores.ravel() * NUM_BINS).astype(int), NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS)
    divisors = np.maximum(counts, 1)
    means = np.bincount(bins, scores.ravel(), minlength=NUM_BINS) / divisors
    shares = np.bincount(bins, targets.ravel(), minlength=NUM_BINS) / divisors
    return tuple(
        ReliabilityBin(scores=count, mean_score=min(mean, 1.0), share_right=share)
        for count, mean, share in zip(counts.tolist(), means.tolist(), shares.tolist(), strict=True)
    )


def measure_error(bins: tuple[ReliabilityBin, ...]) -> float:
    """Returns the expected calibration error, 0..1: the mean gap between score and share."""
    total = sum(entry.scores for entry in bins)
    gaps = (entry.scores * abs(entry.mean_score - entry.share_right) for entry in bins)
    return float(sum(gaps) / total)


def find_threshold(  # noqa: PLR0913 - each aim is optional
    scores: Scores,
    targets: Targets,
    precision_target: float | None = None,
    recall_target: float = 0.0,
    *,
    wanted: float | None = None,
    confidence: float = _CONFIDENCE,
) -> MeasuredThreshold | None:
    """Returns a threshold for scores 0..1 [n] and targets 0/1 [n], at least one 1.

    It is that of best F1; of several, that with the highest threshold (fewest predictions). With
    `wanted`, the photos that reach this are to reach it, if F1 allows. With a recall target, the
    threshold is lowered until the recall reaches it. With a precision target, it is that of the
    lowest threshold whose precision reaches it, or None: the lower end of Wilson's interval of this
    confidence has to reach it, so that a few predictions do not reach it by luck.
    """
    order = np.argsort(-scores, kind="stable")
    descending = scores[order]
    # Equal scores are predicted together or not at all.
    cuts = np.flatnonzero(np.append(descending[:-1] > descending[1:], True))
    hits = np.cumsum(targets[order], dtype=np.float64)[cuts]
    count = cuts + 1.0
    if precision_target is None:
        enough = hits >= recall_target * hits[-1]
        f1 = 2 * hits / (count + hits[-1])
        cut = int(np.argmax(f1))  # the first of equals
        if wanted is not None:
            good = np.flatnonzero(f1 >= f1[cut] - _MOST_LOST)
            cut = int(good[np.argmin(abs(good - (descending[cuts] >= wanted).sum() + 1))])
        cut = max(cut, int(np.argmax(enough)))
    else:
        share, z = hits / count, confidence
        middle = share + z**2 / (2 * count)
        margin = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        (sure,) = ((middle - margin) / (1 + z**2 / count) >= precision_target).nonzero()
        if not len(sure):
            return None
        cut = int(sure[-1])
    # Halfway to the next lower score, which deviations of another device seldom cross.
    last = cuts[cut]
    score, lower = float(descending[last]), float(descending[min(last + 1, len(scores) - 1)])
    between = (score + lower) / 2
    return MeasuredThreshold(
        threshold=between if between > lower else score,  # none between neighbouring floats
        precision=float(hits[cut] / count[cut]),
        recall=float(hits[cut] / hits[-1]),
    )


def make_precise(
    least: float, scores: Scores, targets: Targets, *, calibrated: bool
) -> MeasuredThreshold | None:
    """Returns a threshold of at least `least` whose precision reaches `PRECISE`, or None.

    Scores are 0..1 [n], targets 0/1 [n]. Calibrated scores have to expect it too: the mean score of
    the answers has to reach it, which holds on other photos if these few were easy ones.
    """
    counted = find_threshold(scores, targets, PRECISE, confidence=_PRECISE_CONFIDENCE)
    descending = -np.sort(-scores)
    means = descending.cumsum() / np.arange(1, len(scores) + 1)
    expected = descending[means >= PRECISE] if calibrated else np.zeros(1)
    if counted is None or not len(expected):
        return None
    least = max(least, counted.threshold, float(expected[-1]))
    point = measure_threshold(least, scores >= least, targets)
    return point if point.precision >= PRECISE else None


def measure_threshold(
    threshold: float, answered: NDArray[np.bool_], targets: Targets
) -> MeasuredThreshold:
    """Returns a threshold with the precision and recall of what is answered at it."""
    right = int(targets[answered].sum())
    precision, recall = (right / max(int(made.sum()), 1) for made in (answered, targets))
    return MeasuredThreshold(threshold=threshold, precision=precision, recall=recall)


def find_thresholds(
    names: Sequence[str],
    scores: Scores,
    targets: Targets,
    precision_target: float | None = None,
    recall_target: float = 0.0,
) -> dict[str, MeasuredThreshold | None]:
    """Returns `find_threshold` of labels with `MIN_POSITIVES` photos; the scores are [n, L].

    Without a precision target, noise in few positives does not decide: see `_SHARED_WEIGHT`.
    """
    everything = None
    if precision_target is None and targets.any():
        everything = find_threshold(scores.ravel(), targets.ravel())
    samples = np.random.default_rng(0).integers(0, len(scores), (_SAMPLES, len(scores)))
    found = {}
    for name, column, truths in zip(names, scores.T, targets.T, strict=True):
        wanted, positives = None, int(truths.sum())
        if positives < MIN_POSITIVES:
            continue
        if everything and positives < _MANY_POSITIVES:
            wanted = _average_best(column, truths, samples, everything.threshold)
        found[name] = find_threshold(column, truths, precision_target, recall_target, wanted=wanted)
    return found


def _average_best(
    scores: Scores, targets: Targets, samples: NDArray[np.int64], shared: float
) -> float:
    """Returns a mean, in log-odds, of best thresholds in bootstrap samples and that of all labels.

    Scores and targets of a label are [n]; samples are rows of them, [S, n].
    """
    best = (find_threshold(scores[rows], targets[rows]) for rows in samples if targets[rows].any())
    inside = np.clip([shared, *(point.threshold for point in best if point)], 1e-9, 1 - 1e-9)
    common, *own = np.log(inside / (1 - inside))
    share = (positives := targets.sum()) / (positives + _SHARED_WEIGHT)
    return float(sigmoid(share * np.mean(own) + (1 - share) * common))


def _fit_labels(
    logits: Scores, targets: Targets, *, shared: Calibration
) -> tuple[Calibration | None, ...]:
    """Returns each label's own pair, fitted to logits that the shared pair has calibrated."""
    calibrations = []
    for column, truths in zip(_apply(logits, shared).T, targets.T, strict=True):
        calibration = None
        if min(truths.sum(), (1 - truths).sum()) >= MIN_POSITIVES:
            calibration = _fit(column, truths, _LABEL_PRIOR)
        if calibration is not None:
            shift = shared.shift * calibration.scale + calibration.shift
            calibration = Calibration(scale=shared.scale * calibration.scale, shift=shift)
        calibrations.append(calibration)
    return tuple(calibrations)


def _fit(logits: Scores, targets: Targets, prior: float) -> Calibration | None:
    """Minimises log loss + prior / 2 * ((scale - 1)^2 + shift^2); None unless scale > 0."""
    targets = targets.ravel()
    inputs = np.stack([logits.ravel(), np.ones(logits.size)])
    start = np.array([1.0, 0.0])

    def compute_loss(pair: Scores) -> float:
        values = pair @ inputs
        loss = np.logaddexp(0.0, values).sum() - targets @ values
        return float(loss + prior / 2 * ((pair - start) ** 2).sum())

    pair, loss = start, compute_loss(start)
    for _ in range(_MAX_STEPS):
        scores = sigmoid(pair @ inputs)
        slope = inputs @ (scores - targets) + prior * (pair - start)
        curvature = (inputs * (scores * (1 - scores))) @ inputs.T + prior * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        # The loss is convex: half a step is shorter, and at last short enough.
        while (new := compute_loss(pair - step)) > loss and np.abs(step).max() > 1e-9:
            step /= 2
        pair, loss = pair - step, min(new, loss)
        if np.abs(step).max() < 1e-6:
            break
    return Calibration(scale=pair[0], shift=pair[1]) if pair[0] > 0 else None


def _apply(logits: Scores, pair: Calibration) -> Scores:
    return pair.scale * logits + pair.shift


def sigmoid(values: Scores) -> Scores:
    """Returns scores 0..1 of logits of any shape, without overflow."""
    scores: Scores = 1 / (1 + np.exp(-np.clip(values, -700, 700)))
    return scores


def _log_loss(values: Scores, targets: Targets) -> float:
    return float((np.logaddexp(0.0, values) - targets * values).mean())
