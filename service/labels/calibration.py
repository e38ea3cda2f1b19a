"""Calibration: the threshold of best F1 of one label, from scores on labelled photos.

A threshold lies halfway between the lowest predicted score and the next lower one, so that the
small deviations of another precision or device seldom cross it. Of several with the best F1, the
highest is taken (fewest predictions).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_POSITIVES = 5
"""Fewest photos with a label for which it gets a threshold."""


@dataclass(frozen=True)
class OperatingPoint:
    """A point on a label's precision-recall curve; all numbers are 0..1."""

    threshold: float
    precision: float
    recall: float


def find_best_f1(scores: NDArray[np.float64], targets: NDArray[np.int64]) -> OperatingPoint:
    """Returns the point of best F1, from scores 0..1 [n] and targets 0/1 [n], at least one 1."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(targets[order])
    # Equal scores are predicted together or not at all.
    cuts = np.flatnonzero(np.append(ranked[:-1] > ranked[1:], True))
    predicted = cuts + 1
    f1 = 2 * hits[cuts] / (predicted + hits[-1])
    best = int(np.argmax(f1))  # the first of equals: the highest threshold
    cut = cuts[best]
    score = float(ranked[cut])
    lower = float(ranked[cut + 1]) if cut + 1 < len(ranked) else score
    middle = (score + lower) / 2
    return OperatingPoint(
        threshold=middle if middle > lower else score,  # none between neighbouring floats
        precision=float(hits[cut] / (cut + 1)),
        recall=float(hits[cut] / hits[-1]),
    )
