"""Labels of an archive from its tags, all at once: ridge regression next to the texts' logits.

With x a whitened embedding, scaled to a mean square of 1, the directions are the ridge regression
of the tags on x. They do not see the photos that they are measured on (folds). A label's logit is

    a z + (b + c / sqrt(n)) r + s

with z its text's logit and r its direction's value, each in its deviations, and n the photos with
the tag. a, b and c are fitted to all labels together, by log loss: one label's few photos, scored
without it, would give a wrong sign. The shift s is the label's own.

The target of a photo of which nothing is known is its prediction so far. A missing tag counts as
absent, with the weight of a tag. With weights of 0.3 and 0.1, mAP of true labels was the same
within 0.1 if captions were the tags (recall 0.15 to 0.93), and 0.5 and 1.1 lower with complete
tags. Penalties from 1 to 30 differ by one point.
"""

from dataclasses import dataclass
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from service.archive.choice import PRESENT, REJECTED, UNKNOWN
from service.bundle.card import MeasuredThreshold
from service.calibration import (
    RECALL,
    find_threshold,
    find_thresholds,
    make_precise,
    sigmoid,
)
from service.engine.heads import QueryArray
from service.fields import ThresholdName
from service.labels.sources.fit import Fit, FitFigures
from service.labels.sources.source import Point
from service.labels.whitening import Vectors, Whitening

MIN_PHOTOS = 10
_PENALTY = 3.0
_FOLDS = 10
_PIECE = 4  # photos; longer ones would hold all photos of a rare tag of one day
_FLAT = 1e-6  # logits that deviate less are all the same
_ROUNDS = 3
_SHIFT_PRIOR = 1.0
_MAX_STEPS = 50
# A label is told apart if the rank-sum test is this sure, in deviations, its average precision has
# so many times the odds of its share of the photos, and its answers are not mostly wrong.
_SURE = 2.0
_MIN_LIFT = 2.0
_MIN_PRECISION = 0.2

Logits = NDArray[np.float32]
Signs = NDArray[np.int8]
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ArchiveFit:
    """Fits of L labels to n photos."""

    fits: tuple[Fit, ...]
    scores: Array  # 0..1, of photos that were not fitted, [n, L]
    told_apart: NDArray[np.bool_]  # [L], whether photos with the tag have higher scores


def fit_labels(
    embeddings: Vectors,
    signs: Signs,
    whitening: Whitening,
    texts: tuple[QueryArray, Logits] | None = None,
    precision_target: float | None = None,
) -> ArchiveFit:
    """Fits labels to embeddings [n, D] of photos, n >= `MIN_PHOTOS`, and their signs [n, L].

    `texts` are the labels' queries [L, K], and the logits [n, L] that the open head gives for them.
    Neighbours may be nearly the same photo. Each label has a photo with it. Thresholds have the
    best F1, or the lowest that reach `precision_target`, 0..1, if photos show that they do.
    """
    queries, logits = texts or (None, None)
    rows = whitening.whiten(embeddings)
    size = np.sqrt(np.square(rows).mean())
    others = whitening.others / size
    folds = _deal(len(rows))
    values = np.empty(signs.shape)
    for fold in range(_FOLDS):
        here = folds == fold
        directions = _regress(rows[~here] / size, signs[~here])
        values[here] = rows[here] / size @ directions / _deviate(others @ directions)
    directions = _regress(rows / size, signs)
    deviations = _deviate(others @ directions)
    positives = (signs == PRESENT).sum(axis=0)
    priors = np.zeros(signs.shape) if logits is None else logits.astype(np.float64)
    middles, spreads = priors.mean(axis=0), _deviate(priors)
    spreads[spreads < _FLAT] = np.inf  # such a text says nothing
    features = np.stack([(priors - middles) / spreads, values, values / np.sqrt(positives)])
    is_used = np.ones(len(positives), np.bool_)
    while True:  # what is anti-correlated by chance has no weight
        weights, shifts = _calibrate(features, signs)
        slopes = (weights[1] + weights[2] / np.sqrt(positives)) * is_used
        if weights[0] >= 0 and (slopes >= 0).all():
            break
        features[0] *= weights[0] >= 0
        is_used &= slopes >= 0
        features[1:] *= is_used
    scores = sigmoid(np.tensordot(weights, features, 1) + shifts)
    scales = weights[0] / spreads
    factors = slopes / deviations / size
    vectors, offsets = whitening.pull_back(directions.T * factors[:, np.newaxis])
    points = _find_points(scores, signs, precision_target)
    fits, told_apart = [], []
    for label, column in enumerate(signs.T):
        known = column != UNKNOWN
        truths = column[known] == PRESENT
        learnt = measure_ap(scores[known, label], truths)
        figures = FitFigures(
            photos=int(known.sum()),
            positive=int(positives[label]),
            negative=int((column == REJECTED).sum()),
            text_ap=None if logits is None else measure_ap(priors[known, label], truths),
            learnt_ap=learnt,
            scale=float(scales[label]),
            shift=float(shifts[label] - scales[label] * middles[label] + offsets[label]),
            points=points[label],
        )
        fits.append(Fit(vectors[label], figures, None if queries is None else queries[label]))
        precision = points[label]["calibrated"].precision
        is_useful = precision is None or precision >= _MIN_PRECISION
        told_apart.append(is_useful and _is_told_apart(scores[known, label], truths, learnt))
    return ArchiveFit(tuple(fits), scores, np.array(told_apart))


def _deal(count: int) -> NDArray[np.intp]:
    """Returns the fold of each photo: neighbours, such as a burst, share one."""
    pieces = np.arange(count) // min(_PIECE, count // (2 * _FOLDS) + 1)
    folds: NDArray[np.intp] = np.random.default_rng(0).permutation(pieces[-1] + 1) % _FOLDS
    return folds[pieces]


def _regress(rows: Vectors, signs: Signs) -> Vectors:
    """Returns directions, float32 [D, L], of rows [n, D] for signs [n, L]."""
    width = rows.shape[1]
    square = (rows.T @ rows).astype(np.float64) / width
    square[np.diag_indices(width)] += _PENALTY
    inverse = np.linalg.inv(square).astype(np.float32)
    is_known, targets = signs != UNKNOWN, (signs == PRESENT).astype(np.float32)
    share = targets.sum(axis=0) / np.maximum(is_known.sum(axis=0), 1)
    targets = np.where(is_known, targets, share)
    for _ in range(1 if is_known.all() else _ROUNDS):
        middle = targets.mean(axis=0)
        directions = inverse @ (rows.T @ (targets - middle) / width)
        targets = np.where(is_known, targets, (middle + rows @ directions).clip(0, 1))
    return cast(Vectors, directions.astype(np.float32))


def _deviate(values: NDArray[np.floating]) -> Array:
    deviations: Array = values.std(axis=0, dtype=np.float64)
    return np.maximum(deviations, 1e-9)


def _calibrate(features: Array, signs: Signs) -> tuple[Array, Array]:
    """Returns weights [k] of features [k, n, L], all labels', and shifts [L] of each label.

    Newton's method on the log loss, with the shifts drawn to their mean.
    """
    counted, truths = (signs != UNKNOWN).astype(np.float64), (signs == PRESENT).astype(np.float64)
    count = counted.sum(axis=0)
    hits = truths.sum(axis=0)
    weights, shifts = np.zeros(len(features)), np.log((hits + 0.5) / (count - hits + 0.5))

    def lose(weights: Array, shifts: Array) -> float:
        values = np.tensordot(weights, features, 1) + shifts
        loss = (counted * (np.logaddexp(0, values) - truths * values)).sum()
        return float(loss + _SHIFT_PRIOR / 2 * np.square(shifts - shifts.mean()).sum())

    loss = lose(weights, shifts)
    for _ in range(_MAX_STEPS):
        scores = sigmoid(np.tensordot(weights, features, 1) + shifts)
        errors, curves = counted * (scores - truths), counted * scores * (1 - scores)
        slope = np.tensordot(features, errors, 2)
        shift_slope = errors.sum(axis=0) + _SHIFT_PRIOR * (shifts - shifts.mean())
        shift_curve = curves.sum(axis=0) + _SHIFT_PRIOR
        mixed = (features * curves).sum(axis=1)
        square = np.tensordot(features * curves, features, ((1, 2), (1, 2)))
        square += 1e-3 * np.eye(len(features)) - mixed / shift_curve @ mixed.T
        step = np.linalg.solve(square, slope - mixed / shift_curve @ shift_slope)
        shift_step = (shift_slope - mixed.T @ step) / shift_curve
        # The loss is convex: half a step is shorter, and at last short enough.
        share = 1.0
        while (new := lose(weights - share * step, shifts - share * shift_step)) > loss:
            share /= 2
            if share < 1e-6:
                return weights, shifts
        weights, shifts = weights - share * step, shifts - share * shift_step
        if loss - new < 1e-9 * loss:
            break
        loss = new
    return weights, shifts


def _find_points(
    scores: Array, signs: Signs, precision_target: float | None
) -> list[dict[ThresholdName, Point]]:
    """Returns thresholds of each label; those that its photos do not choose are all labels'."""
    truths = (signs == PRESENT).astype(np.int64)
    values = np.where(signs == UNKNOWN, 0.0, scores)  # below all others: it counts for nothing
    everything = values.ravel(), truths.ravel()
    shared = _find_aims(everything, find_threshold(*everything), precision_target)
    names = [str(label) for label in range(len(truths.T))]
    best = find_thresholds(names, values, truths)
    points = []
    for name, column, truth in zip(names, values.T, truths.T, strict=True):
        own = _find_aims((column, truth), best.get(name), precision_target)
        least = best_point.threshold if (best_point := best.get(name)) else 0.0
        words = get_args(ThresholdName)
        points.append({word: _make_point(own.get(word), shared.get(word), least) for word in words})
    return points


def _find_aims(
    photos: tuple[Array, NDArray[np.int64]],
    balanced: MeasuredThreshold | None,
    precision_target: float | None,
) -> dict[ThresholdName, MeasuredThreshold | None]:
    if balanced is None:  # too few photos
        return {}
    least, target = balanced.threshold, precision_target
    return {
        "calibrated": (target and find_threshold(*photos, target)) or balanced,
        "balanced": balanced,
        "recall": find_threshold(*photos, recall_target=RECALL, wanted=least),
        "precise": make_precise(least, *photos, calibrated=True),
    }


def _make_point(
    own: MeasuredThreshold | None, shared: MeasuredThreshold | None, least: float
) -> Point:
    if own is not None:
        return Point(**dict(own))
    return Point(threshold=1.0 if shared is None else max(shared.threshold, least))


def measure_ap(scores: NDArray[np.floating], truths: NDArray[np.bool_]) -> float:
    """Returns the average precision, 0..1, of scores [n] and at least one truth.

    Equal scores count as found together.
    """
    order = np.argsort(-scores, kind="stable")
    cuts = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = truths[order].cumsum()[cuts]
    return float((hits / (cuts + 1)) @ np.diff(hits, prepend=0) / hits[-1])


def _is_told_apart(scores: Array, truths: NDArray[np.bool_], learnt_ap: float) -> bool:
    """Returns whether photos with the tag score higher, by more than chance and enough to use."""
    positive, negative = int(truths.sum()), int((~truths).sum())
    if not negative:
        return False
    ranks = scores.argsort().argsort()[truths].sum() - positive * (positive - 1) / 2
    middle = positive * negative / 2
    deviation = np.sqrt(positive * negative * (positive + negative + 1) / 12)  # Mann-Whitney
    odds, share = learnt_ap / max(1 - learnt_ap, 1e-9), positive / negative
    return bool(ranks - middle > _SURE * deviation and odds > _MIN_LIFT * share)
