"""Losses: logits and targets of a batch -> one number, unknown labels left out.

In: logits [B, N] and targets [B, N]. Out: the loss a photo. Next: `loop.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy
from torch import Tensor

from models.train.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]

_SURELY_ABSENT = -1e4  # its sigmoid is 0 in float16 too


class LossError(Exception):
    """The loss is no longer a number; the message is one line for a person."""


def make_loss(recipe: Recipe) -> Loss:
    """Returns the recipe's loss, from timm.

    `asymmetric` is summed over the labels; `bce` is their mean, with mixed targets made 0/1 at
    `bce_threshold` as in arXiv 2110.00476. Both are means over the photos.
    """
    if recipe.loss == "bce":
        mean_loss = BinaryCrossEntropy(smoothing=0.0, target_threshold=recipe.bce_threshold)
        return lambda logits, targets: mean_loss(*leave_out_unknown(logits, targets))
    sum_loss = asymmetric_loss(
        recipe.gamma_neg, recipe.gamma_pos, recipe.clip, recipe.focal_gradient
    )
    return lambda logits, targets: sum_loss(*leave_out_unknown(logits, targets))


def asymmetric_loss(
    gamma_neg: float, gamma_pos: float, clip: float, focal_gradient: bool = True
) -> Loss:
    """Returns timm's asymmetric loss (arXiv 2009.14119), summed over labels, a mean over photos.

    Args:
        gamma_neg: focus on negatives.
        gamma_pos: focus on positives.
        clip: probability margin.
        focal_gradient: the focusing weight passes gradients.
    """
    known = inspect.signature(AsymmetricLossMultiLabel).parameters
    # Newer timms divide by the batch if not told to sum; older ones always sum.
    reduction: dict[str, Any] = {"reduction": "sum"} if "reduction" in known else {}
    loss = AsymmetricLossMultiLabel(
        gamma_neg, gamma_pos, clip, disable_torch_grad_focal_loss=not focal_gradient, **reduction
    )
    return lambda logits, targets: loss(logits, targets) / len(logits)


def check_finite(loss: float, epoch: int) -> float:
    """Returns the loss of a batch if it is a number.

    Raises:
        LossError: it is not; from there on, every weight would be lost.
    """
    if not math.isfinite(loss):
        raise LossError(
            f"the loss of epoch {epoch} is {loss}: a lower lr or another mixed_precision may help"
        )
    return loss


def leave_out_unknown(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Makes unknown labels surely absent ones: they give neither loss nor gradient.

    Args:
        logits: float [B, N].
        targets: 1, 0 or -1 (unknown), or shares of mixed photos, float [B, N].
    """
    unknown = targets < 0
    return logits.masked_fill(unknown, _SURELY_ABSENT), targets.masked_fill(unknown, 0.0)
