"""Figures of merit for multi-label predictions, in percent.

Targets are 1 (present), 0 (absent) or -1 (unknown, ignored).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision

from models.commands import RequestError


class MetricError(RequestError, ValueError):
    """Scores are not finite numbers."""


def average_precisions(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns the average precision of each label, 0..100, float [N].

    NaN for a label without a positive or without a negative: every order ranks its photos alike.
    Raises MetricError if a score is not finite.
    """
    if not scores.isfinite().all():
        raise MetricError("the scores of the network are not finite numbers")
    # torchmetrics applies a sigmoid to values outside 0..1, which ties large logits; an affine map
    # in float64 keeps every order and every tie.
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
    """Returns the mean of `average_precisions`, ignoring NaN; raises MetricError."""
    return float(average_precisions(scores, targets).nanmean())


@dataclass(frozen=True)
class Rates:
    """Precision, recall and their harmonic mean, percent."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """2 * precision * recall / (precision + recall), or 0 if both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def class_and_overall_rates(
    scores: Tensor, targets: Tensor, threshold: float = 0.5, top_k: int | None = None
) -> tuple[Rates, Rates]:
    """Computes CP, CR, CF1 and OP, OR, OF1 (arXiv 1904.03582, section 4.1).

    Predicts, of a photo's `top_k` best labels, those that score at least `threshold`.

    Returns:
        Rates averaged over the labels with a positive (precision is 0 for a label that is never
        predicted), and rates over all decisions.
    """
    predicted = scores >= threshold
    if top_k is not None:
        predicted &= _best(scores, top_k)
    predicted &= targets >= 0
    hits, made, wanted = _count(predicted, targets > 0)
    counted = wanted > 0
    by_class = Rates(
        _percent((hits / made.clamp_min(1))[counted].mean()),
        _percent((hits / wanted.clamp_min(1))[counted].mean()),
    )
    return by_class, _overall(hits, made, wanted)


def rates_at_k(scores: Tensor, targets: Tensor, k: int) -> Rates:
    """Computes precision, recall and F1 of exactly k predictions a photo, over all decisions.

    This is F1@k of the zero-shot literature: photos without a positive are left out.
    """
    some = (targets > 0).any(dim=1)
    return _overall(*_count(_best(scores[some], k), targets[some] > 0))


def _count(predicted: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each label the numbers of hits, of predictions and of positives."""
    parts = (predicted & positive, predicted, positive)
    hits, made, wanted = (part.sum(dim=0).double() for part in parts)
    return hits, made, wanted


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
