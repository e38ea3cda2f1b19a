"""Turns logits into labels, best first: activation, thresholds, top-k.

`Question` says what `top_k` and `threshold` do. With neither, a set that ranks answers with its
best labels, and a lone set of a trained softmax, whose scores compete, with its best label.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Activation
from service.engine.heads import ScreenedLogits
from service.labels.label_set import MOST_RANKED, LabelSet, Source
from service.labels.whitening import Vector
from service.pipeline.selection import SelectedLabels, Selection
from service.question import Threshold

# float64 overflows at exp(710).
_MAX_EXPONENT = 700.0
# Sorting up to this many scores is as fast as partitioning them first.
_MAX_SORTED = 500


@dataclass(frozen=True)
class ScoredLabel:
    """One label of an answer."""

    label: str
    score: float  # 0..1
    threshold: float  # 0..1: the question's number, else the label's own, else its set's fallback
    source: Source
    calibrated: bool  # whether `threshold` is the label's own
    # Not a field of the instance, so that `vars` omits it.
    category: str | None = field(default=None, init=False)


@dataclass(frozen=True)
class CategorisedLabel(ScoredLabel):
    """A label that has a category."""

    category: str | None = None


def compute_scores(
    logits: NDArray[np.floating],
    activation: Activation,
    calibration: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Turns logits [..., N] into scores 0..1, without overflow at any finite logit.

    `calibration` [2, N] has the scale and shift of each logit, for a sigmoid.
    """
    if activation == "softmax":
        values = logits.astype(np.float64)
        weights: NDArray[np.float64] = np.exp(values - values.max(axis=-1, keepdims=True))
        total: NDArray[np.float64] = weights.sum(axis=-1, keepdims=True)
        return weights / total
    # In place: for small arrays, overhead outweighs arithmetic.
    scores: NDArray[np.float64] = np.negative(logits, dtype=np.float64)
    if calibration is not None:
        scores *= calibration[0]
        scores -= calibration[1]
    np.minimum(scores, _MAX_EXPONENT, out=scores)
    np.exp(scores, out=scores)
    np.add(scores, 1.0, out=scores)
    np.reciprocal(scores, out=scores)
    return scores


def score_labels(
    logits: Sequence[NDArray[np.floating] | ScreenedLogits],
    selection: Selection,
    embedding: Vector | None = None,
) -> tuple[ScoredLabel, ...]:
    """Scores one image's logits and picks the labels that answer the question.

    `logits` has an array for each part of the selection: [L] for its chosen labels or [N] for its
    whole set, as softmax needs, or those that the screened head kept. `embedding` [D] is the
    photo's, if the selection embeds. The best score is first; equal scores keep the order of sets
    and labels.
    """
    threshold, limit = selection.question.threshold, selection.question.top_k
    if threshold is None and limit is None:
        threshold, first = "calibrated", selection.sets[0]
        if len(selection.sets) == 1 and first.activation == "softmax" and not first.ranked:
            threshold, limit = None, 1  # the scores compete: the best label is the answer
    best = MOST_RANKED if threshold == "calibrated" and limit is None else limit
    found = [
        label
        for values, part in zip(logits, selection.parts, strict=True)
        for label in _score_part(
            values, part, embedding, threshold, best if part.labels.ranked else limit
        )
    ]
    # Each part is sorted already; the sort is stable.
    if len(selection.parts) > 1:
        found.sort(key=lambda label: -label.score)
    return tuple(found[:limit])


def _score_part(
    logits: NDArray[np.floating] | ScreenedLogits,
    part: SelectedLabels,
    embedding: Vector | None,
    threshold: Threshold | None,
    limit: int | None,
) -> list[ScoredLabel]:
    labels, chosen = part.labels, part.chosen
    if isinstance(logits, ScreenedLogits):
        counts = np.isin(logits.positions, chosen, assume_unique=True)
        chosen, logits = logits.positions[counts], logits.logits[counts]
    scores = _score_logits(logits, labels, chosen, embedding)
    fixed = threshold if isinstance(threshold, float | int) else None
    floors = labels.thresholds
    if isinstance(threshold, str) and limit is None:
        floors = _find_floors(labels, scores)
    if len(scores) != len(chosen):
        scores = scores[chosen]
    if threshold is not None:
        own = floors if len(chosen) == len(floors) else floors[chosen]
        (among,) = (scores >= (own if fixed is None else fixed)).nonzero()
        scores, chosen = scores[among], chosen[among]
    best = _order_best(scores, limit)
    positions = chosen[best]
    if fixed is None:
        least, known = labels.thresholds[positions].tolist(), labels.calibrated[positions].tolist()
    else:
        least, known = [float(fixed)] * len(best), [False] * len(best)
    sources: Iterable[Source] = repeat(labels.source)
    if labels.learnt is not None:
        learnt = np.isin(positions, labels.learnt.positions)
        sources = np.where(learnt, "examples", labels.source).tolist()
    rows = zip(
        [labels.names[position] for position in positions.tolist()],
        *(scores[best].tolist(), least, sources, known),
        strict=False,
    )
    if not (categories := labels.categories):
        return [ScoredLabel(*row) for row in rows]
    return [
        CategorisedLabel(*row, category)
        if (category := categories.get(row[0]))
        else ScoredLabel(*row)
        for row in rows
    ]


def _score_logits(
    logits: NDArray[np.floating],
    labels: LabelSet,
    chosen: NDArray[np.intp],
    embedding: Vector | None,
) -> NDArray[np.float64]:
    """Returns the scores of logits [L], or of those of the chosen labels alone."""
    calibration, is_whole = labels.calibration, len(logits) == len(labels.names)
    if calibration is not None and not is_whole:
        calibration = calibration[:, chosen]
    if labels.learnt is None and labels.source != "examples":
        return compute_scores(logits, labels.activation, calibration)
    values = logits.astype(np.float64)
    if calibration is not None:
        values = values * calibration[0] + calibration[1]
    # Without a text, a label that has learnt nothing has the score 0.
    added = np.full(len(labels.names), -np.inf if labels.source == "examples" else 0.0)
    if (learnt := labels.learnt) is not None:
        assert embedding is not None
        is_few = 2 * len(chosen) <= len(learnt.positions)
        rows = np.isin(learnt.positions, chosen) if is_few else slice(None)
        added[learnt.positions[rows]] = learnt.vectors[rows] @ embedding + learnt.shifts[rows]
    return compute_scores(values + (added if is_whole else added[chosen]), labels.activation)


def _find_floors(labels: LabelSet, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns thresholds [L] that only the best rating reaches.

    The best is of all ratings, so that a question about some of them does not get a lower one.
    """
    if labels.ratings is None:
        return labels.thresholds
    floors = labels.thresholds.copy()
    floors[labels.ratings] = np.inf
    floors[labels.ratings[_order_best(scores[labels.ratings], 1)]] = -np.inf
    return floors


def _order_best(scores: NDArray[np.float64], limit: int | None) -> NDArray[np.intp]:
    """Returns the positions of the best scores, at most `limit`; equal ones keep their order."""
    keys = -scores  # NaN is last in every sort
    if limit is None or len(keys) <= max(limit, _MAX_SORTED):
        return keys.argsort(kind="stable")[:limit]
    last = np.partition(keys, limit - 1)[limit - 1]
    # Scores equal to the last one are sorted too, so that the first of them is in the answer.
    (among,) = (~(keys > last)).nonzero()
    best: NDArray[np.intp] = among[keys[among].argsort(kind="stable")[:limit]]
    return best
