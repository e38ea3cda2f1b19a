"""Figures of merit for multi-label predictions.

In: logits or scores [n, N] and 0/1 targets [n, N]. Out: average precisions in percent.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision


def average_precisions(scores: Tensor, targets: Tensor) -> Tensor:
    """Computes the average precision of each label with torchmetrics.

    Args:
        scores: float [n, N]; only their order within a label matters.
        targets: 0/1 [n, N].

    Returns:
        Percent, 0..100, float [N]; NaN for a label without a positive.
    """
    # torchmetrics squashes values outside 0..1, and large logits would tie; an affine map in
    # float64 keeps every order and every tie.
    scores = scores.double()
    span = (scores.max() - scores.min()).clamp_min(torch.finfo(torch.float64).tiny)
    scaled = (scores - scores.min()) / span
    values = [
        float(binary_average_precision(column, target)) * 100 if target.any() else float("nan")
        for column, target in zip(scaled.T, targets.long().T, strict=True)
    ]
    return torch.tensor(values)


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Returns the mean over the labels that have a positive, percent 0..100."""
    return float(average_precisions(scores, targets).nanmean())
