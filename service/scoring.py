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

from service.card import Activation
from service.labels.label_set import Source
from service.selection import Part, Selection


@dataclass(frozen=True)
class ScoredLabel:
    """One label of an answer.

    Attributes:
        label: the label's name.
        score: 0..1.
        threshold: the score (0..1) the label counts as predicted from: the query's number,
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
    logits = logits.astype(np.float64)
    if activation == "softmax":
        weights: NDArray[np.float64] = np.exp(logits - logits.max())
        total: np.float64 = weights.sum()
        return weights / total
    small: NDArray[np.float64] = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def score_labels(
    logits: Sequence[NDArray[np.floating]], selection: Selection
) -> tuple[ScoredLabel, ...]:
    """Scores one image's logits and picks the labels that answer the query.

    Args:
        logits: for each part of the selection, the logits of its head: [N] of every trained
            label (a softmax runs over all of them, so a score never depends on the query) or
            [L] of the chosen open labels.
        selection: what to choose from.

    Returns:
        The labels, best score first; equal scores keep the order of the sets and labels.
    """
    parts = selection.parts
    if not parts:
        return ()
    scores = np.concatenate(
        [_score_part(values, part) for values, part in zip(logits, parts, strict=True)]
    )
    thresholds = np.concatenate([part.labels.thresholds[part.chosen] for part in parts])
    calibrated = np.concatenate([part.labels.calibrated[part.chosen] for part in parts])
    threshold = selection.query.threshold
    if isinstance(threshold, float | int):
        thresholds = np.full_like(thresholds, threshold)
        calibrated = np.zeros_like(calibrated)
    limit, applies = _resolve(selection)
    among = np.flatnonzero(scores >= thresholds) if applies else np.arange(len(scores))
    best = among[np.argsort(-scores[among], kind="stable")][:limit]
    starts = np.cumsum([0, *(len(part.chosen) for part in parts)])
    owners = np.searchsorted(starts, best, side="right") - 1
    return tuple(
        ScoredLabel(
            label=parts[owner].labels.names[parts[owner].chosen[i - starts[owner]]],
            score=float(scores[i]),
            threshold=float(thresholds[i]),
            source=parts[owner].labels.source,
            calibrated=bool(calibrated[i]),
        )
        for i, owner in zip(best, owners, strict=True)
    )


def _score_part(logits: NDArray[np.floating], part: Part) -> NDArray[np.float64]:
    scores = compute_scores(logits, part.labels.activation)
    return scores[part.chosen] if part.head is None else scores


def _resolve(selection: Selection) -> tuple[int | None, bool]:
    """Returns the most labels (None: no limit) and whether thresholds apply."""
    query, sets = selection.query, selection.sets
    if query.threshold is not None:
        return query.top_k, True
    if query.top_k is None and len(sets) == 1 and sets[0].activation == "softmax":
        return 1, False
    return query.top_k, query.top_k is None
