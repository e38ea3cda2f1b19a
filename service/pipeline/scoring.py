"""Logits become labels: activation, thresholds, top-k.

In: the logits of one image, one array for each part of its `Selection`. Out: `ScoredLabel`s,
best first. The rules:

- neither `top_k` nor `threshold`: every label at or above its calibrated threshold; a
  softmax head alone, whose scores compete, answers with its best label;
- `top_k` alone: exactly the k best, whatever their scores;
- `threshold` alone: every label at or above it (a number for all, or `calibrated`);
- both: the k best of those at or above the threshold.

Next: `pipeline.py`, which puts the labels into its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Activation
from service.labels.label_set import Source
from service.labels.question import Threshold
from service.pipeline.selection import Part, Selection

# Its exponential is near the end of float64; the score is 0 to a hundred places.
_LARGEST_EXPONENT = 700.0
# Up to here, to sort all scores takes no longer than to look for the best ones first.
_SORTED_AT_ONCE = 500


@dataclass(frozen=True)
class ScoredLabel:
    """One label of an answer.

    Attributes:
        label: the label's name.
        score: 0..1.
        threshold: the score (0..1) the label counts as predicted from: the question's number,
            else the label's own, else the fallback of its set.
        source: how the model knows the label.
        calibrated: whether `threshold` is the label's own.
    """

    label: str
    score: float
    threshold: float
    source: Source
    calibrated: bool


def compute_scores(logits: NDArray[np.floating], activation: Activation) -> NDArray[np.float64]:
    """Turns logits [N] into scores [N], 0..1, without overflow at any finite logit."""
    if activation == "softmax":
        values = logits.astype(np.float64)
        weights: NDArray[np.float64] = np.exp(values - values.max())
        total: np.float64 = weights.sum()
        return weights / total
    # Each operation costs more than its few values do, so there are few, and all in one array.
    scores: NDArray[np.float64] = np.negative(logits, dtype=np.float64)
    np.minimum(scores, _LARGEST_EXPONENT, out=scores)
    np.exp(scores, out=scores)
    np.add(scores, 1.0, out=scores)
    np.reciprocal(scores, out=scores)
    return scores


def score_labels(
    logits: Sequence[NDArray[np.floating]], selection: Selection
) -> tuple[ScoredLabel, ...]:
    """Scores one image's logits and picks the labels that answer the question.

    Args:
        logits: for each part of the selection, the logits of its head: [L] of the chosen labels
            or [N] of every label of the set, as those of a trained head always are (a softmax
            runs over all of them, so a score never depends on the question).
        selection: what to choose from.

    Returns:
        The labels, best score first; equal scores keep the order of the sets and labels.
    """
    parts = selection.parts
    if not parts:
        return ()
    limit, applies = _resolve(selection)
    found = [
        label
        for values, part in zip(logits, parts, strict=True)
        for label in _score_part(values, part, selection.question.threshold, limit, applies)
    ]
    # Each part is in order already; of equal scores, the earlier part's come first.
    if len(parts) > 1:
        found.sort(key=lambda label: -label.score)
    return tuple(found[:limit])


def _score_part(
    logits: NDArray[np.floating],
    part: Part,
    threshold: Threshold | None,
    limit: int | None,
    applies: bool,
) -> list[ScoredLabel]:
    """Returns the labels of one part that may be in the answer, best first."""
    labels, chosen = part.labels, part.chosen
    scores = compute_scores(logits, labels.activation)
    whole = len(chosen) == len(labels.names)
    if len(scores) != len(chosen):
        scores = scores[chosen]
    fixed = threshold if isinstance(threshold, float | int) else None
    if applies:
        own = labels.thresholds if whole else labels.thresholds[chosen]
        (among,) = (scores >= (own if fixed is None else fixed)).nonzero()
        scores, chosen = scores[among], chosen[among]
    best = _order_best(scores, limit)
    positions = chosen[best]
    if fixed is None:
        least, known = labels.thresholds[positions].tolist(), labels.calibrated[positions].tolist()
    else:
        least, known = [float(fixed)] * len(best), [False] * len(best)
    return [
        ScoredLabel(labels.names[position], score, from_score, labels.source, calibrated)
        for position, score, from_score, calibrated in zip(
            positions.tolist(), scores[best].tolist(), least, known, strict=True
        )
    ]


def _order_best(scores: NDArray[np.float64], limit: int | None) -> NDArray[np.intp]:
    """Returns the positions of the best scores, at most `limit`; equal ones keep their order."""
    keys = -scores  # what is no number stands last, however they are sorted
    if limit is None or len(keys) <= max(limit, _SORTED_AT_ONCE):
        return keys.argsort(kind="stable")[:limit]
    last = np.partition(keys, limit - 1)[limit - 1]
    # Whatever equals the last of them is sorted with them, so that the first of those is taken.
    (among,) = (~(keys > last)).nonzero()
    best: NDArray[np.intp] = among[keys[among].argsort(kind="stable")[:limit]]
    return best


def _resolve(selection: Selection) -> tuple[int | None, bool]:
    """Returns the most labels (None: no limit) and whether thresholds apply."""
    question, sets = selection.question, selection.sets
    if question.threshold is not None:
        return question.top_k, True
    if question.top_k is None and len(sets) == 1 and sets[0].activation == "softmax":
        return 1, False
    return question.top_k, question.top_k is None
