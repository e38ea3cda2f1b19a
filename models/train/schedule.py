"""The learning rate over the steps of a run. Used by the loops of `train` and `train_open`."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR


def one_cycle(optimizer: Optimizer, total_steps: int, warmup: float) -> OneCycleLR:
    """Returns OneCycle with each parameter group's own rate as its peak.

    Args:
        optimizer: groups with `lr`.
        total_steps: of the whole run.
        warmup: share of the steps that the rate rises in.
    """
    if warmup * total_steps == 1:
        warmup /= 2  # torch divides by the length of the rise less one step
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps, pct_start=warmup)
