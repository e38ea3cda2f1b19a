"""Scores become a decision: the threshold of best F1 of one label.

In: scores and targets of labelled photos. Out: an `OperatingPoint`. Used by the export for
trained labels and by `ml-decoder labels calibrate` for registered ones.

Rules: a threshold lies halfway between the lowest predicted score and the next lower one,
so that the small deviations of another precision or device seldom cross it. Where several
give the best F1, the highest is taken (fewest predictions). Equal scores are predicted
together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_POSITIVES = 5
"""Fewest photos with a label for which it gets a threshold: one that is fitted to fewer would
say more than is known."""


@dataclass(frozen=True)
class OperatingPoint:
    """A point on a label's precision-recall curve.

    Attributes:
        threshold: score (0..1) at and above which the label is predicted.
        precision: share of the predicted that are right, 0..1.
        recall: share of the positives that are predicted, 0..1.
    """

    threshold: float
    precision: float
    recall: float


def find_best_f1(scores: NDArray[np.float64], targets: NDArray[np.int64]) -> OperatingPoint:
    """Returns the point of best F1 of one label.

    Args:
        scores: [n], 0..1.
        targets: 0/1 [n], at least one 1.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(targets[order])
    # Only after the last of equal scores can a threshold cut.
    cuts = np.flatnonzero(np.append(ranked[:-1] > ranked[1:], True))
    predicted = cuts + 1
    f1 = 2 * hits[cuts] / (predicted + hits[-1])
    best = int(np.argmax(f1))  # the first of equals: the highest threshold
    cut = cuts[best]
    lower = ranked[cut + 1] if cut + 1 < len(ranked) else ranked[cut]
    return OperatingPoint(
        threshold=_halfway(float(ranked[cut]), float(lower)),
        precision=float(hits[cut] / (cut + 1)),
        recall=float(hits[cut] / hits[-1]),
    )


def _halfway(score: float, lower: float) -> float:
    middle = (score + lower) / 2
    return middle if middle > lower else score  # neighbouring floats have none between
