"""Losses: logits and targets of a batch -> one number, unknown labels left out.

In: logits [B, N] and targets [B, N]. Out: the loss a photo. Next: `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy
from torch import Tensor

from models.train.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]

_SURELY_ABSENT = -1e4  # its sigmoid is 0 in float16 too


def make_loss(recipe: Recipe) -> Loss:
    """Returns the recipe's loss, from timm.

    `asymmetric` (arXiv 2009.14119) is summed over the labels; `bce` is their mean, with
    mixed targets made 0/1 at `bce_threshold` as in arXiv 2110.00476.
    """
    if recipe.loss == "bce":
        mean_loss = BinaryCrossEntropy(smoothing=0.0, target_threshold=recipe.bce_threshold)
        return lambda logits, targets: mean_loss(*leave_out_unknown(logits, targets))
    sum_loss = AsymmetricLossMultiLabel(
        recipe.gamma_neg,
        recipe.gamma_pos,
        recipe.clip,
        disable_torch_grad_focal_loss=not recipe.focal_gradient,
    )
    return lambda logits, targets: sum_loss(*leave_out_unknown(logits, targets)) / len(logits)


def leave_out_unknown(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Makes unknown labels surely absent ones: they give neither loss nor gradient.

    Args:
        logits: float [B, N].
        targets: 1, 0 or -1 (unknown), or shares of mixed photos, float [B, N].
    """
    unknown = targets < 0
    return logits.masked_fill(unknown, _SURELY_ABSENT), targets.masked_fill(unknown, 0.0)
