"""Figures of merit, in percent, and the lines that commands print; targets are 1 or 0."""

from collections.abc import Iterator, Sequence

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
        binary_average_precision(column, target) if target.min() < target.max() else torch.nan
        for column, target in zip(scaled.T, targets.long().T, strict=True)
    ]
    return torch.tensor(values) * 100


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Returns the mean of `average_precisions` without NaN; raises RequestError as it does."""
    return float(average_precisions(scores, targets).nanmean())


def measure_rates(scores: Tensor, targets: Tensor, top_k: int | None = None) -> dict[str, float]:
    """Computes CP, CR, CF1 and OP, OR, OF1 (arXiv 1904.03582, section 4.1).

    Predicts, of a photo's `top_k` best labels, those that score at least 0.5. C rates are
    means over labels with a positive, whose precision is 0 if they are never predicted.
    """
    predicted, positive = scores >= 0.5, targets > 0
    if top_k is not None:
        predicted &= _best(scores, top_k)
    parts = (predicted & positive, predicted, positive)
    hits, made, wanted = (part.sum(dim=0).double() for part in parts)
    counted = wanted > 0
    by_class = [(hits / total.clamp_min(1))[counted] for total in (made, wanted)]
    overall = [hits.sum() / total.sum().clamp_min(1) for total in (made, wanted)]
    figures: dict[str, float] = {}
    for kind, rates in (("C", by_class), ("O", overall)):
        precision, recall = (float(rate.mean()) * 100 for rate in rates)
        f1 = 2 * precision * recall / ((precision + recall) or 1.0)
        figures |= {f"{kind}P": precision, f"{kind}R": recall, f"{kind}F1": f1}
    return figures


def _best(scores: Tensor, k: int) -> Tensor:
    chosen = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)


def report_multi_label(scores: Tensor, targets: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Yields each label's average precision, then mAP, CF1, OF1 and the top-3 figures.

    Scores [n, N] are 0..1, predicted from 0.5 on; targets [n, N] are 1 or 0.
    """
    values = average_precisions(scores, targets)
    for name, value in zip(names, values.tolist(), strict=True):
        yield _line(name, value)
    yield _line("mAP", float(values.nanmean()))
    for prefix, top_k in (("", None), ("top-3 ", 3)):
        for name, value in measure_rates(scores, targets, top_k=top_k).items():
            yield _line(f"{prefix}{name}", value)


def report_single_label(scores: Tensor, targets: Tensor) -> Iterator[str]:
    """Yields top-1 and top-5 accuracy; targets are one-hot [n, N]."""
    for k in (1, 5):
        hits = _best(scores, k) & (targets > 0)
        yield _line(f"top-{k} accuracy", float(hits.any(dim=1).double().mean()) * 100)


def _line(name: str, value: float) -> str:
    return f"{name:20} {value:6.2f}"
