"""Logits become labels: activation, thresholds, top-k, include and exclude.

In: the logits [N] of one image and a `Query`. Out: `ScoredLabel`s, best first. The rules:

- neither `top_k` nor `threshold`: every label at or above its calibrated threshold; a
  softmax head, whose scores compete, answers with its best label;
- `top_k` alone: exactly the k best, whatever their scores;
- `threshold` alone: every label at or above it (a number for all, or `calibrated`);
- both: the k best of those at or above the threshold.

Next: `pipeline.py`, which puts the labels into its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.card import Activation, Label
from service.errors import ConflictingLabels, UnknownLabel

FALLBACK_THRESHOLD = 0.5
"""Score at and above which a label that was never calibrated is predicted."""

Source = Literal["trained", "zero_shot"]
Threshold = float | Literal["calibrated"]


@dataclass(frozen=True)
class Query:
    """What a client wants to know about an image.

    Attributes:
        top_k: most labels to answer with, 1 or more; more than there are means all; None
            sets no limit.
        threshold: a score (0..1) for every label, `calibrated` for each label's own, or
            None: no threshold where `top_k` is given, else `calibrated`.
        include: names to choose from; empty means all labels.
        exclude: names never to answer with.
    """

    top_k: int | None = None
    threshold: Threshold | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses values out of range, which the callers check before.

        Raises:
            ValueError: `top_k` or `threshold` is out of range.
        """
        if self.top_k is not None and self.top_k < 1:
            raise ValueError("top_k has to be 1 or more")
        if isinstance(self.threshold, float | int) and not 0.0 <= self.threshold <= 1.0:
            raise ValueError("threshold has to be between 0 and 1")


@dataclass(frozen=True)
class ScoredLabel:
    """One label of an answer.

    Attributes:
        label: the label's name.
        score: 0..1.
        threshold: the score (0..1) the label counts as predicted from: the query's number,
            else the label's own, else `FALLBACK_THRESHOLD`.
        source: how the label came to the model.
        calibrated: whether `threshold` is the label's own, chosen on validation data.
    """

    label: str
    score: float
    threshold: float
    source: Source
    calibrated: bool


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labels as columns, in the order of the logits; made once, used by every request.

    Attributes:
        names: N names, each once.
        thresholds: float64 [N], 0..1, the fallback where a label was not calibrated.
        calibrated: bool [N], whether the threshold is the label's own.
        source: how these labels came to the model.
        positions: name -> its index in the columns.
    """

    names: tuple[str, ...]
    thresholds: NDArray[np.float64]
    calibrated: NDArray[np.bool_]
    source: Source
    positions: dict[str, int]

    @classmethod
    def from_trained(cls, labels: Sequence[Label]) -> LabelSet:
        """Returns the columns of a bundle's trained labels."""
        own = [FALLBACK_THRESHOLD if la.threshold is None else la.threshold for la in labels]
        return cls(
            names=tuple(label.name for label in labels),
            thresholds=np.array(own, np.float64),
            calibrated=np.array([label.threshold is not None for label in labels], np.bool_),
            source="trained",
            positions={label.name: position for position, label in enumerate(labels)},
        )


def compute_scores(logits: NDArray[np.floating], activation: Activation) -> NDArray[np.float64]:
    """Turns logits [N] into scores [N], 0..1, without overflow at any finite logit."""
    logits = logits.astype(np.float64)
    if activation == "softmax":
        weights: NDArray[np.float64] = np.exp(logits - logits.max())
        total: np.float64 = weights.sum()
        return weights / total
    small: NDArray[np.float64] = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def select_labels(labels: LabelSet, query: Query) -> NDArray[np.intp]:
    """Returns the positions that the query may answer with, ascending.

    Raises:
        UnknownLabel: `include` or `exclude` has names that are no labels.
        ConflictingLabels: a name is in both.
    """
    asked = dict.fromkeys(query.include + query.exclude)
    unknown = tuple(name for name in asked if name not in labels.positions)
    if unknown:
        raise UnknownLabel(unknown)
    excluded = set(query.exclude)
    conflicting = tuple(name for name in dict.fromkeys(query.include) if name in excluded)
    if conflicting:
        raise ConflictingLabels(conflicting)
    chosen = np.full(len(labels.names), not query.include)
    chosen[[labels.positions[name] for name in query.include]] = True
    chosen[[labels.positions[name] for name in query.exclude]] = False
    return np.flatnonzero(chosen)


def score_labels(
    logits: NDArray[np.floating],
    labels: LabelSet,
    chosen: NDArray[np.intp],
    query: Query,
    activation: Activation,
) -> tuple[ScoredLabel, ...]:
    """Scores one image's logits and picks the labels that answer the query.

    Args:
        logits: [N], in the order of `labels`.
        labels: the labels of the logits.
        chosen: positions to choose from, by `select_labels`. A softmax still runs over
            all N logits, so a score never depends on the query.
        query: how many labels, from which score.
        activation: of the head that gave the logits.

    Returns:
        The labels, best score first; equal scores keep the order of the labels.
    """
    scores = compute_scores(logits, activation)
    limit, applies = _resolve(query, activation)
    thresholds = labels.thresholds
    calibrated = labels.calibrated
    if isinstance(query.threshold, float | int):
        thresholds = np.full_like(thresholds, query.threshold)
        calibrated = np.zeros_like(calibrated)
    if applies:
        chosen = chosen[scores[chosen] >= thresholds[chosen]]
    best = chosen[np.argsort(-scores[chosen], kind="stable")][:limit]
    return tuple(
        ScoredLabel(
            label=labels.names[i],
            score=float(scores[i]),
            threshold=float(thresholds[i]),
            source=labels.source,
            calibrated=bool(calibrated[i]),
        )
        for i in best
    )


def _resolve(query: Query, activation: Activation) -> tuple[int | None, bool]:
    """Returns the most labels (None: no limit) and whether thresholds apply."""
    if query.threshold is not None:
        return query.top_k, True
    if query.top_k is None and activation == "softmax":
        return 1, False
    return query.top_k, query.top_k is None
