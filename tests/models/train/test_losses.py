"""Losses ignore unknown labels; mixing depends on the kind of labels; queries are augmented."""

import math
from collections.abc import Callable

import pytest
import torch
from timm.loss import AsymmetricLossMultiLabel
from torch import nn

from models.train import losses
from models.train.losses import augment_queries, make_loss, make_mix, mix
from models.train.recipe import Recipe


@pytest.mark.parametrize("kind", ["asymmetric", "bce"])
def test_unknown_labels_give_neither_loss_nor_gradient(kind: str) -> None:
    torch.manual_seed(0)
    loss = make_loss(Recipe.model_validate({"loss": kind}))
    logits = torch.randn(6, 5, requires_grad=True)
    targets = torch.randint(-1, 2, (6, 5)).float()
    value = loss(logits, targets)
    value.backward()
    assert not logits.grad[targets == -1].any()
    assert (logits.grad[targets >= 0] != 0).all()
    moved = logits.detach() + 3 * (targets == -1)
    torch.testing.assert_close(loss(moved, targets), value.detach())
    assert float(loss(moved, torch.full_like(targets, -1))) == pytest.approx(0, abs=1e-6)


def test_bce_is_a_mean_over_labels_whose_mixed_targets_are_0_or_1() -> None:
    loss = make_loss(Recipe(loss="bce", bce_threshold=0.2))
    logits, targets = torch.tensor([[2.0, 2, -1, 0]]), torch.tensor([[0.3, 0.1, 1, 0]])
    costs = [math.log1p(math.exp(margin)) for margin in (-2, 2, 1, 0)]
    for photos in (1, 8):
        cost = loss(logits.repeat(photos, 1), targets.repeat(photos, 1))
        assert float(cost) == pytest.approx(sum(costs) / 4, rel=1e-5)


def sum_always(*settings: float, disable_torch_grad_focal_loss: bool) -> nn.Module:
    """The loss of older timm versions."""
    assert not disable_torch_grad_focal_loss
    return AsymmetricLossMultiLabel(*settings, reduction="sum")


@pytest.mark.parametrize("kind", [AsymmetricLossMultiLabel, sum_always])
def test_asymmetric_loss_is_summed_over_labels_and_a_mean_over_photos_with_every_timm(
    kind: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "AsymmetricLossMultiLabel", kind)
    # Worked out by hand: at a logit of 0, an absent label costs (1 - 0.55)^4 * -ln(0.55).
    absent, present = 0.45**4 * -math.log(0.55), math.log(2)
    targets = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    loss = make_loss(Recipe())
    for photos in (1, 8):
        cost = loss(torch.zeros(2 * photos, 3), targets.repeat(photos, 1))
        assert float(cost) == pytest.approx((present + 5 * absent) / 2, rel=1e-5)
    # A probability of 0.9, less the margin: 1 - 0.9 + 0.05 are left for being absent.
    cost = loss(torch.tensor([[math.log(9)]]), torch.zeros(1, 1))
    assert float(cost) == pytest.approx(0.85**4 * -math.log(0.15), rel=1e-5)


# An absent label at a logit of 0 costs p^2 * -ln(1 - p); the slope of p is 1/4 there.
@pytest.mark.parametrize(
    ("passes", "expected"), [(False, 0.5**2 * 0.5), (True, 0.5**3 + 2 * 0.5 * 0.25 * math.log(2))]
)
def test_focusing_weight_passes_gradients_only_with_focal_gradient(
    passes: bool, expected: float
) -> None:
    loss = make_loss(Recipe(gamma_neg=2.0, clip=0.0, focal_gradient=passes))
    logits = torch.zeros(1, 1, requires_grad=True)
    loss(logits, torch.zeros(1, 1)).backward()
    assert logits.grad.item() == pytest.approx(expected)


def test_mixup_gives_the_labels_of_both_photos_and_unknown_ones_if_one_does_not_know() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.rand(8, 3, 4, 4), torch.eye(8)
    mixed, union = mix(inputs, targets, alpha=1.0)
    assert (union >= targets).all()
    assert union.sum(dim=1).max() == 2
    assert mixed.min() >= inputs.min()
    assert mixed.max() <= inputs.max()
    assert mix(inputs, targets, alpha=0.0) == (inputs, targets)
    partial = torch.tensor([[1.0, 0, -1], [-1, -1, 0]]).repeat(8, 1)
    _, union = mix(torch.rand(16, 3, 4, 4), partial, alpha=1.0)
    assert set(map(tuple, union.tolist())) <= {(1, 0, -1), (-1, -1, 0), (1, -1, -1)}


def test_single_labels_are_mixed_into_shares() -> None:
    recipe = Recipe(mixup=0.2, cutmix=1.0, single_label=True)
    inputs, targets = torch.rand(9, 3, 8, 8), torch.eye(9)
    before = inputs.clone()
    mixed, shares = make_mix(recipe, 9)(inputs, targets)
    assert (len(mixed), shares.shape) == (8, (8, 9))  # pairs, so the odd one is left out
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(8))
    torch.testing.assert_close(inputs, before)


@pytest.mark.parametrize("field", ["gamma_neg", "gamma_pos"])
def test_focus_below_1_needs_a_weight_without_gradients(field: str) -> None:
    with pytest.raises(ValueError, match="0, or at least 1"):
        Recipe.model_validate({field: 0.5})
    recipe = Recipe.model_validate({field: 0.5, "focal_gradient": False})
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    make_loss(recipe)(logits, torch.tensor([[1.0, 0.0]])).backward()
    assert torch.isfinite(logits.grad).all()


def test_queries_get_noise_and_random_ones_are_absent() -> None:
    torch.manual_seed(0)
    embeddings, targets = torch.randn(6, 5) + 3, torch.randint(0, 2, (4, 6)).float()
    queries, wanted = augment_queries(embeddings, targets, num_random=8, noise=0.1)
    assert (queries.shape, wanted.shape) == ((14, 5), (4, 14))
    torch.testing.assert_close(wanted[:, :6], targets)
    assert not wanted[:, 6:].any()
    moved = (queries[:6] - embeddings).abs()
    assert 0 < moved.mean() < 0.3
    assert (queries[6:].mean(dim=0) - 3).abs().max() < 2
    queries, wanted = augment_queries(embeddings, targets, num_random=0, noise=0.0)
    torch.testing.assert_close((queries, wanted), (embeddings, targets))
