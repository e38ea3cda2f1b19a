"""Chooses the labels that the open head scores: those whose estimate may be in the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import LogitsArray

# Scores of higher logits round to the same float64, and of equal scores the first label is
# answered: none of them may be left out for another.
_SATURATED = 33.0


@dataclass(frozen=True, eq=False)
class Wanted:
    """What a question needs of a label's calibrated logit, scale * logit + shift."""

    scale: NDArray[np.float32] | None = None  # [L]; None is 1
    shift: NDArray[np.float32] | None = None  # [L]; None is 0
    floors: NDArray[np.float32] | float | None = None  # [L], logits of the thresholds
    limit: int | None = None  # most labels in the answer
    chosen: NDArray[np.intp] | None = None  # ascending positions to choose from; None is all


def find_kept(estimates: LogitsArray, wanted: Wanted, margin: float) -> NDArray[np.intp]:
    """Returns the ascending positions of labels that may be in the answer.

    `estimates` [L] are of the open head's logits. With a threshold, the best `limit` are searched
    among the labels that certainly reach theirs: others do not count against it. NaN is kept.
    """
    ranks: LogitsArray = estimates if wanted.scale is None else estimates * wanted.scale
    if wanted.shift is not None:
        ranks = ranks + wanted.shift
    reach = margin if wanted.scale is None else margin * wanted.scale
    lost = np.zeros(len(ranks), np.bool_)
    if wanted.chosen is not None:
        lost[:] = True
        lost[wanted.chosen] = False
    rivals = ~lost
    if wanted.floors is not None:
        floors = np.minimum(wanted.floors, _SATURATED)
        lost |= ranks + reach < floors
        rivals &= ranks - reach >= floors
    if wanted.limit is not None:
        values = ranks[rivals]
        if len(values) > wanted.limit:
            place = len(values) - wanted.limit
            lost |= ranks + reach < min(np.partition(values, place)[place], _SATURATED)
    (kept,) = (~lost).nonzero()
    return kept
