"""Figures as the papers print them, as lines for a terminal; for checkpoints and bundles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from models.metrics import (
    Rates,
    average_precisions,
    class_and_overall_rates,
    mean_average_precision,
    rates_at_k,
)


def report_multi_label(scores: Tensor, targets: Tensor, names: Sequence[str]) -> Iterator[str]:
    """Yields each label's average precision, then mAP, CF1, OF1 and the top-3 figures.

    Scores [n, N] are 0..1, predicted from 0.5 on; targets [n, N] are 1, 0 or -1 (unknown).
    """
    values = average_precisions(scores, targets)
    for name, value in zip(names, values.tolist(), strict=True):
        yield _line(name, value)
    yield _line("mAP", float(values.nanmean()))
    for prefix, top_k in (("", None), ("top-3 ", 3)):
        by_class, overall = class_and_overall_rates(scores, targets, top_k=top_k)
        yield from _rate_lines(f"{prefix}C", by_class)
        yield from _rate_lines(f"{prefix}O", overall)


def report_single_label(scores: Tensor, targets: Tensor) -> Iterator[str]:
    """Yields top-1 and top-5 accuracy; targets are one-hot [n, N]."""
    for k in (1, 5):
        yield _line(f"top-{k} accuracy", rates_at_k(scores, targets, k).recall)


def report_zero_shot(
    scores: Tensor,
    targets: Tensor,
    names: Sequence[str],
    seen: Collection[str],
    unseen: Collection[str],
) -> Iterator[str]:
    """Yields mAP, P, R and F1@3, @5 over the unseen labels (ZSL), and with the seen ones (GZSL).

    Scores and targets (1 or 0) are [n, N]; names neither seen nor unseen are ignored.
    """
    for kind, counted in (("ZSL", {*unseen}), ("GZSL", {*seen, *unseen})):
        chosen = [i for i, name in enumerate(names) if name in counted]
        some, wanted = scores[:, chosen], targets[:, chosen]
        yield _line(f"{kind} mAP", mean_average_precision(some, wanted))
        for k in (3, 5):
            rates = rates_at_k(some, wanted, k)
            yield _line(f"{kind} P@{k}", rates.precision)
            yield _line(f"{kind} R@{k}", rates.recall)
            yield _line(f"{kind} F1@{k}", rates.f1)


def _rate_lines(prefix: str, rates: Rates) -> Iterator[str]:
    yield _line(f"{prefix}P", rates.precision)
    yield _line(f"{prefix}R", rates.recall)
    yield _line(f"{prefix}F1", rates.f1)


def _line(name: str, value: float) -> str:
    return f"{name:20} {value:6.2f}"
