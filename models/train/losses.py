"""The loss of labelled photos, from timm."""

import inspect
from collections.abc import Callable
from typing import Any

from timm.loss import AsymmetricLossMultiLabel
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def asymmetric_loss(gamma_neg: float, clip: float) -> Loss:
    """Returns timm's loss (2009.14119): a sum over labels, a mean over photos; gamma_pos is 0."""
    known = inspect.signature(AsymmetricLossMultiLabel).parameters
    # Newer versions of timm take the mean over the batch by default; older ones always sum.
    reduction: dict[str, Any] = {"reduction": "sum"} if "reduction" in known else {}
    loss = AsymmetricLossMultiLabel(
        gamma_neg, 0.0, clip, disable_torch_grad_focal_loss=False, **reduction
    )
    return lambda logits, targets: loss(logits, targets) / len(logits)
