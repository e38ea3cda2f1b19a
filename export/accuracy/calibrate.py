"""Scores become decisions: each label's threshold of best F1 on validation photos.

In: scores [n, N] and targets [n, N]. Out: the bundle's `Label`s; one with fewer positives than
`MIN_POSITIVES` is left uncalibrated. Next: `build.py` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Label
from service.labels.calibration import MIN_POSITIVES, find_best_f1


def calibrate_labels(
    names: Sequence[str], scores: NDArray[np.float64], targets: NDArray[np.int64]
) -> tuple[Label, ...]:
    """Chooses every label's threshold.

    Args:
        names: N labels, in the order of the columns.
        scores: [n, N], 0..1.
        targets: 0/1 [n, N].
    """
    labels = []
    for column, name in enumerate(names):
        positives = int(targets[:, column].sum())
        if positives < MIN_POSITIVES:
            labels.append(Label(name=name, positives=positives))
            continue
        best = find_best_f1(scores[:, column], targets[:, column])
        labels.append(
            Label(
                name=name,
                threshold=best.threshold,
                precision=best.precision,
                recall=best.recall,
                positives=positives,
            )
        )
    return tuple(labels)
