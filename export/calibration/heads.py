"""Calibrations and thresholds of heads, from logits and targets.

Thresholds are chosen on the scores that will be served: calibrated ones, except with `raw_scores`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.accuracy import ScoredPhotos
from export.graphs.graph import FloatArray
from export.sources.labelled_photos import LabelledPhotos
from service.bundle.card import (
    FALLBACK_THRESHOLD,
    Calibration,
    Label,
    MeasuredThreshold,
    OpenHead,
    TrainedHead,
)
from service.calibration import (
    RECALL,
    Fit,
    find_threshold,
    find_thresholds,
    fit_calibration,
    make_precise,
    measure_threshold,
)
from service.fields import ThresholdName
from service.pipeline.scoring import compute_scores

Scores = NDArray[np.float64]

# Other greys and devices score a little higher than those that are measured.
_BLANK_MARGIN = 0.015
_MAX_LOSS = 0.1  # of F1, for a label not to be found on blank photos

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CalibrationOptions:
    """How scores are calibrated and thresholds chosen."""

    raw_scores: bool = False  # serve the sigmoid of the logits as they are
    precision_target: float | None = None  # 0..1; None chooses the thresholds of best F1
    recall_target: float = 0.0  # 0..1; lowers those of best F1 until they reach it


_PURPOSES: dict[ThresholdName, CalibrationOptions] = {
    "balanced": CalibrationOptions(),
    "recall": CalibrationOptions(recall_target=RECALL),
}


def calibrate_trained(
    head: TrainedHead, labels: Sequence[Label], scored: ScoredPhotos, options: CalibrationOptions
) -> tuple[TrainedHead, tuple[Label, ...]]:
    """Returns the head and its labels with calibrations and thresholds; a softmax stays raw.

    Labels with fewer than `MIN_POSITIVES` positives, or that do not reach the wanted precision, get
    no threshold: the head's applies, which is that of all labels together.
    """
    targets = scored.photos.targets
    fit = None
    if head.activation == "sigmoid" and not options.raw_scores:
        fit = _fit("trained labels", scored, per_label=True)
    pair = None if fit is None else fit.stack()
    scores, blank = (
        compute_scores(logits, head.activation, pair) for logits in (scored.logits, scored.blank)
    )
    names = [label.name for label in labels]
    reached = None if options.precision_target is None else _find_shared(scores, targets, options)
    threshold = FALLBACK_THRESHOLD if reached is None else reached
    calibrations = (None,) * len(names) if fit is None else fit.labels
    measured, points = {}, dict[ThresholdName, dict[str, MeasuredThreshold]]()
    fitted = fit is not None
    for word, least in _find_purposes(scores, targets, threshold, calibrated=fitted).items():
        aim = _PURPOSES.get(word, options)
        if word == "precise":
            found = {
                name: point
                for name, column, truths in zip(names, scores.T, targets.T, strict=True)
                if (best := points["balanced"].get(name))
                and (point := make_precise(best.threshold, column, truths, calibrated=fitted))
            }
        elif word != "calibrated" and aim == options:
            found = points["calibrated"]
        else:
            found = _find_points(names, scores, blank, targets, aim)
        points[word] = found
        chosen = [found[name].threshold if name in found else least for name in names]
        answered = scores >= np.array(chosen)
        measured[word] = _measure(f"trained labels, {word}", least, answered, scored.photos)
    own, updated = points.pop("calibrated"), []
    for label, positives, calibrated in zip(labels, targets.sum(axis=0), calibrations, strict=True):
        name, unset = label.name, dict.fromkeys(MeasuredThreshold.model_fields)
        changes: dict[str, Any] = {
            **(dict(own[name]) if name in own else unset),
            "positives": int(positives),
            "calibration": calibrated,
            "by_purpose": {word: found[name] for word, found in points.items() if name in found},
        }
        updated.append(label.model_copy(update=changes))
    changed = {"threshold": threshold, "by_purpose": measured, "calibration": fit and fit.shared}
    return head.model_copy(update=changed), tuple(updated)


def calibrate_open(head: OpenHead, scored: ScoredPhotos, options: CalibrationOptions) -> OpenHead:
    """Returns the head with calibration and threshold, found on labels that were not trained.

    Calibrated scores need no threshold, as 0.5 applies, except for a wanted precision. A softmax
    that cannot be calibrated stays one.
    """
    targets = scored.photos.targets
    fit = None if options.raw_scores else _fit("open labels", scored)
    if fit is None and head.activation == "softmax":
        return head
    calibration = None if fit is None else fit.shared
    scores = score_open(scored.logits, calibration)
    threshold = None
    if fit is None or options.precision_target is not None:
        threshold = _find_shared(scores, targets, options)
    if fit is None and threshold is None:  # 0.5 would have no meaning on raw scores
        threshold = _find_shared(scores, targets, CalibrationOptions())
    threshold = FALLBACK_THRESHOLD if threshold is None else threshold
    purposes = _find_purposes(scores, targets, threshold, calibrated=fit is not None)
    measured = {
        word: _measure(f"open labels, {word}", least, scores >= least, scored.photos)
        for word, least in purposes.items()
    }
    changed = {"activation": "sigmoid", "threshold": threshold, "by_purpose": measured}
    changed["calibration"] = calibration
    if fit is None:  # all open labels are on one scale
        changed["trained_names"] = None
    return head.model_copy(update=changed)


def calibrate_trained_names(head: OpenHead, scored: ScoredPhotos) -> OpenHead:
    """Returns a head with a calibration for names of trained labels, if that is better.

    Without a calibration of other labels there is none: all open labels are on one scale.
    """
    fit = None
    if (shared := head.calibration) is not None:
        current = shared.scale * scored.logits.astype(np.float64) + shared.shift
        fit = _fit("trained names as open labels", scored, current=current)
    return head.model_copy(update={"trained_names": None if fit is None else fit.shared})


def find_open_thresholds(
    scored: ScoredPhotos, calibration: Calibration | None, options: CalibrationOptions
) -> dict[str, float]:
    """Returns the thresholds of names, as open labels with this calibration."""
    scores, blank = (score_open(logits, calibration) for logits in (scored.logits, scored.blank))
    names, targets = scored.photos.label_names, scored.photos.targets
    points = _find_points(names, scores, blank, targets, options)
    return {name: point.threshold for name, point in points.items()}


def score_open(logits: FloatArray, calibration: Calibration | None) -> Scores:
    """Returns the service's scores of open labels, which all have the same calibration."""
    pair = None if calibration is None else np.array([[calibration.scale], [calibration.shift]])
    return compute_scores(logits, "sigmoid", pair)


def _find_points(
    names: Sequence[str],
    scores: Scores,
    blank: Scores,
    targets: NDArray[np.int64],
    options: CalibrationOptions,
) -> dict[str, MeasuredThreshold]:
    aims = options.precision_target, options.recall_target
    best = find_thresholds(names, scores, targets, *aims)
    points = {name: point for name, point in best.items() if point is not None}
    if options.precision_target is not None:
        logger.info(
            "precision %g: %d of %d labels reach it, with a mean recall of %.2f",
            *(options.precision_target, len(points), len(names)),
            np.mean([point.recall for point in points.values()]) if points else 0.0,
        )
    floors = blank.max(axis=0, initial=0.0)
    for name, floor, column, truths in zip(names, floors, scores.T, targets.T, strict=True):
        point = points.get(name)
        clear = point and _clear_blank(point, float(floor), column, truths)
        if point and clear and clear.recall >= options.recall_target:
            points[name] = clear
            both = clear.threshold, point.threshold
            logger.info("%s: threshold %.2f not %.2f, above blank photos", name, *both)
    return points


def _clear_blank(
    point: MeasuredThreshold, floor: float, scores: Scores, targets: NDArray[np.int64]
) -> MeasuredThreshold | None:
    """Returns a threshold above the label's highest score on blank photos, if that costs little."""
    raised = min(floor + _BLANK_MARGIN, (1 + floor) / 2)
    if point.threshold >= raised:
        return None
    clear = measure_threshold(raised, scores >= raised, targets)
    return None if _f1(point) - _f1(clear) > _MAX_LOSS else clear


def _f1(point: MeasuredThreshold) -> float:
    return 2 * point.precision * point.recall / ((point.precision + point.recall) or 1)


def _find_shared(
    scores: Scores, targets: NDArray[np.int64], options: CalibrationOptions
) -> float | None:
    aims = options.precision_target, options.recall_target
    point = find_threshold(scores.ravel(), targets.ravel(), *aims)
    if point is None:
        logger.warning("precision %g: not reached by all labels together", options.precision_target)
        return None
    return point.threshold


def _find_purposes(
    scores: Scores, targets: NDArray[np.int64], threshold: float, *, calibrated: bool
) -> dict[ThresholdName, float]:
    """Returns thresholds for all labels together; without a positive, the given default alone."""
    thresholds: dict[ThresholdName, float] = {"calibrated": threshold}
    for word, aim in (_PURPOSES if targets.any() else {}).items():
        if (shared := _find_shared(scores, targets, aim)) is not None:
            thresholds[word] = shared
    if targets.any():
        pairs = thresholds["balanced"], scores.ravel(), targets.ravel()
        if point := make_precise(*pairs, calibrated=calibrated):
            thresholds["precise"] = point.threshold
        else:
            logger.warning("precise: not reached by all labels together")
    return thresholds


def _fit(
    labels: str, scored: ScoredPhotos, *, per_label: bool = False, current: Scores | None = None
) -> Fit | None:
    """Fits and logs a calibration; see `fit_calibration`."""
    photos = scored.photos
    fit = fit_calibration(
        scored.logits, photos.targets, photos.dataset, per_label=per_label, current=current
    )
    if fit is None:
        logger.info("%s: no better calibration found on %s", labels, photos.dataset)
    else:
        count = sum(calibration is not None for calibration in fit.labels)
        logger.info("%s: %s on %s, %d with their own", labels, fit.figures, photos.dataset, count)
    return fit


def _measure(
    labels: str, threshold: float, answered: NDArray[np.bool_], photos: LabelledPhotos
) -> MeasuredThreshold:
    """Returns and logs precision and recall of answers [n, L] over all labels."""
    point = measure_threshold(threshold, answered, photos.targets)
    logger.info(
        "%s: precision %.2f and recall %.2f at the thresholds, over %d labels of %s",
        *(labels, point.precision, point.recall, len(photos.label_names), photos.dataset),
    )
    return point
