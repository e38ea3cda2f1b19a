"""Figures of merit of predictions, in percent, and the lines in which commands print them.

Targets are 1 (present) or 0 (absent).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision

from models.commands import RequestError


def average_precisions(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns the average precision of each label, 0..100, float [N].

    NaN for a label without a positive or without a negative: every order ranks its photos alike.
    Raises RequestError if a score is not finite.
    """
    if not scores.isfinite().all():
        raise RequestError("the scores of the network are not finite numbers")
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
    if targets.min() == targets.max():
        return float("nan")
    return float(binary_average_precision(scores, targets)) * 100


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Returns the mean of `average_precisions` without NaN; raises RequestError as it does."""
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

    Predicts, of a photo's `top_k` best labels, those that score at least `threshold`. Returns rates
    averaged over the labels with a positive (precision is 0 for a label that is never predicted),
    and rates over all decisions.
    """
    predicted = scores >= threshold
    if top_k is not None:
        predicted &= _best(scores, top_k)
    hits, made, wanted = _count(predicted, targets > 0)
    counted = wanted > 0
    by_class = Rates(
        *(float((hits / total.clamp_min(1))[counted].mean()) * 100 for total in (made, wanted))
    )
    return by_class, _overall(hits, made, wanted)


def _count(predicted: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each label the numbers of hits, of predictions and of positives."""
    parts = (predicted & positive, predicted, positive)
    hits, made, wanted = (part.sum(dim=0).double() for part in parts)
    return hits, made, wanted


def _best(scores: Tensor, k: int) -> Tensor:
    chosen = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)


def _overall(hits: Tensor, made: Tensor, wanted: Tensor) -> Rates:
    totals = (made.sum(), wanted.sum())
    return Rates(*(float(hits.sum() / total.clamp_min(1)) * 100 for total in totals))


def report_multi_label(scores: Tensor, targets: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Yields each label's average precision, then mAP, CF1, OF1 and the top-3 figures.

    Scores [n, N] are 0..1, predicted from 0.5 on; targets [n, N] are 1 or 0.
    """
    values = average_precisions(scores, targets)
    for name, value in zip(names, values.tolist(), strict=True):
        yield _line(name, value)
    yield _line("mAP", float(values.nanmean()))
    for prefix, top_k in (("", None), ("top-3 ", 3)):
        by_class, overall = class_and_overall_rates(scores, targets, top_k=top_k)
        for kind, rates in (("C", by_class), ("O", overall)):
            for name, value in (("P", rates.precision), ("R", rates.recall), ("F1", rates.f1)):
                yield _line(f"{prefix}{kind}{name}", value)


def report_single_label(scores: Tensor, targets: Tensor) -> Iterator[str]:
    """Yields top-1 and top-5 accuracy; targets are one-hot [n, N]."""
    for k in (1, 5):
        hits, made, wanted = _count(_best(scores, k), targets > 0)
        yield _line(f"top-{k} accuracy", _overall(hits, made, wanted).recall)


def _line(name: str, value: float) -> str:
    return f"{name:20} {value:6.2f}"
