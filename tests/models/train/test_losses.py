"""The asymmetric loss, worked out by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from timm.loss import AsymmetricLossMultiLabel
from torch import nn

from models.train import losses
from models.train.losses import asymmetric_loss
from models.train.recipe import Recipe


def sum_always(*settings: float) -> nn.Module:
    """The loss of older timm versions."""
    return AsymmetricLossMultiLabel(*settings, reduction="sum")


@pytest.mark.parametrize("kind", [AsymmetricLossMultiLabel, sum_always])
def test_asymmetric_loss_is_summed_over_labels_and_a_mean_over_photos_with_every_timm(
    kind: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "AsymmetricLossMultiLabel", kind)
    # Worked out by hand: at a logit of 0, an absent label costs (1 - 0.55)^4 * -ln(0.55).
    absent, present = 0.45**4 * -math.log(0.55), math.log(2)
    targets = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    loss = asymmetric_loss(gamma_neg=4.0, clip=0.05)
    for photos in (1, 8):
        cost = loss(torch.zeros(2 * photos, 3), targets.repeat(photos, 1))
        assert float(cost) == pytest.approx((present + 5 * absent) / 2, rel=1e-5)
    # A probability of 0.9, less the margin: 1 - 0.9 + 0.05 are left for being absent.
    cost = loss(torch.tensor([[math.log(9)]]), torch.zeros(1, 1))
    assert float(cost) == pytest.approx(0.85**4 * -math.log(0.15), rel=1e-5)


def test_focusing_weight_passes_gradients() -> None:
    logits = torch.zeros(1, 1, requires_grad=True)
    asymmetric_loss(gamma_neg=2.0, clip=0.0)(logits, torch.zeros(1, 1)).backward()
    # An absent label at a logit of 0 costs p^2 * -ln(1 - p); the slope of p is 1/4 there.
    assert logits.grad.item() == pytest.approx(0.5**3 + 2 * 0.5 * 0.25 * math.log(2))


def test_focus_is_0_or_at_least_1() -> None:
    with pytest.raises(ValueError, match="0, or at least 1"):
        Recipe(gamma_neg=0.5)
