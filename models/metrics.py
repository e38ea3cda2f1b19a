"""Figures of merit for multi-label predictions.

In: logits or scores [n, N] and targets [n, N]: 1 present, 0 absent, -1 unknown, which counts
for nothing. Out: figures in percent. Next: `report.py`, which prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision


class MetricError(ValueError):
    """Scores cannot be ranked; the message is one line for a person."""


def average_precisions(scores: Tensor, targets: Tensor) -> Tensor:
    """Computes the average precision of each label with torchmetrics.

    Args:
        scores: float [n, N]; only their order within a label matters.
        targets: 1, 0 or -1 (unknown) [n, N].

    Returns:
        Percent, 0..100, float [N]; NaN for a label without a positive or without a negative,
        whose photos any order ranks alike.

    Raises:
        MetricError: a score is not finite.
    """
    if not scores.isfinite().all():
        raise MetricError("the network gives scores that are no finite numbers")
    # torchmetrics squashes values outside 0..1, and large logits would tie; an affine map in
    # float64 keeps every order and every tie.
    scores = scores.double()
    span = (scores.max() - scores.min()).clamp_min(torch.finfo(torch.float64).tiny)
    scaled = (scores - scores.min()) / span
    values = [
        _average_precision(column, target)
        for column, target in zip(scaled.T, targets.long().T, strict=True)
    ]
    return torch.tensor(values)


def _average_precision(scores: Tensor, targets: Tensor) -> float:
    known = targets >= 0
    if not ((targets > 0).any() and (targets == 0).any()):
        return float("nan")
    return float(binary_average_precision(scores[known], targets[known])) * 100


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Returns the mean over the labels that have a positive and a negative, percent 0..100.

    Raises:
        MetricError: a score is not finite.
    """
    return float(average_precisions(scores, targets).nanmean())


@dataclass(frozen=True)
class Rates:
    """Precision, recall and their harmonic mean, percent."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """2 * precision * recall / (precision + recall); 0 where both are."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def class_and_overall_rates(
    scores: Tensor, targets: Tensor, threshold: float = 0.5, top_k: int | None = None
) -> tuple[Rates, Rates]:
    """Computes CP, CR, CF1 and OP, OR, OF1 (arXiv 1904.03582, section 4.1).

    Args:
        scores: float [n, N].
        targets: 1, 0 or -1 (unknown) [n, N].
        threshold: a label is predicted at and above it.
        top_k: and only if it is among the k best of its photo; None sets no such limit.

    Returns:
        Rates averaged over the labels that have a positive (a label that is never predicted
        has precision 0), and rates over all decisions.
    """
    predicted = scores >= threshold
    if top_k is not None:
        predicted &= _best(scores, top_k)
    predicted &= targets >= 0
    positive = targets > 0
    hits, made, wanted = (
        x.sum(dim=0).double() for x in (predicted & positive, predicted, positive)
    )
    counted = wanted > 0
    by_class = Rates(
        _percent((hits / made.clamp_min(1))[counted].mean()),
        _percent((hits / wanted.clamp_min(1))[counted].mean()),
    )
    return by_class, _overall(hits, made, wanted)


def rates_at_k(scores: Tensor, targets: Tensor, k: int) -> Rates:
    """Computes precision, recall and F1 of exactly k predictions a photo.

    It is the zero-shot literature's F1@k: over all decisions, photos without any positive
    left out.

    Args:
        scores: float [n, N].
        targets: 1 or 0 [n, N].
        k: predictions a photo.
    """
    some = (targets > 0).any(dim=1)
    predicted, positive = _best(scores[some], k), targets[some] > 0
    hits, made, wanted = (
        x.sum(dim=0).double() for x in (predicted & positive, predicted, positive)
    )
    return _overall(hits, made, wanted)


def _best(scores: Tensor, k: int) -> Tensor:
    chosen = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)


def _overall(hits: Tensor, made: Tensor, wanted: Tensor) -> Rates:
    return Rates(
        _percent(hits.sum() / made.sum().clamp_min(1)),
        _percent(hits.sum() / wanted.sum().clamp_min(1)),
    )


def _percent(share: Tensor) -> float:
    return float(share) * 100
