"""The loss of labelled photos, from timm."""

from collections.abc import Callable

from timm.loss import AsymmetricLossMultiLabel
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def asymmetric_loss(gamma_neg: float, clip: float) -> Loss:
    """Returns timm's loss (2009.14119): a sum over labels, a mean over photos; gamma_pos is 0."""
    loss = AsymmetricLossMultiLabel(gamma_neg, 0.0, clip)
    # Older versions of timm sum over photos, newer ones take the mean: one row gives the same.
    return lambda logits, targets: (
        loss(logits.flatten()[None], targets.flatten()[None]) / len(logits)
    )
