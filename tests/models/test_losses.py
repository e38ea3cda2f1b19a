"""Losses leave out what nobody knows; mixing keeps to what a kind of data allows."""

import pytest
import torch
from timm.loss import AsymmetricLossMultiLabel

from models.train.losses import make_loss
from models.train.mixing import make_mix, mix
from models.train.recipe import Recipe


@pytest.mark.parametrize("kind", ["asymmetric", "bce"])
def test_unknown_labels_give_neither_loss_nor_gradient(kind: str) -> None:
    torch.manual_seed(0)
    loss = make_loss(Recipe.model_validate({"loss": kind}))
    logits = torch.randn(6, 5, requires_grad=True)
    targets = torch.randint(-1, 2, (6, 5)).float()
    value = loss(logits, targets)
    value.backward()
    assert logits.grad is not None
    assert not logits.grad[targets == -1].any()
    assert (logits.grad[targets >= 0] != 0).all()
    moved = logits.detach() + 3 * (targets == -1)
    torch.testing.assert_close(loss(moved, targets), value.detach())


def test_asymmetric_loss_of_complete_labels_is_timms_a_photo() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(6, 5), torch.randint(0, 2, (6, 5)).float()
    expected = AsymmetricLossMultiLabel(4, 0, 0.05)(logits, targets) / 6
    torch.testing.assert_close(make_loss(Recipe())(logits, targets), expected)


def test_mixed_photos_do_not_know_what_one_of_them_does_not() -> None:
    torch.manual_seed(0)
    targets = torch.tensor([[1.0, 0, -1], [-1, -1, 0]]).repeat(8, 1)
    _, union = mix(torch.rand(16, 3, 4, 4), targets, alpha=1.0)
    assert set(map(tuple, union.tolist())) <= {(1, 0, -1), (-1, -1, 0), (1, -1, -1)}


def test_single_labels_are_mixed_into_shares() -> None:
    recipe = Recipe(mixup=0.2, cutmix=1.0, single_label=True)
    inputs, targets = torch.rand(9, 3, 8, 8), torch.eye(9)
    before = inputs.clone()
    mixed, shares = make_mix(recipe, 9, single_label=True)(inputs, targets)
    assert (len(mixed), shares.shape) == (8, (8, 9))  # pairs, so the odd one is left out
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(8))
    torch.testing.assert_close(inputs, before)


def test_cutmix_of_several_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="single_label"):
        Recipe(cutmix=1.0)
    with pytest.raises(ValueError, match="squash"):
        Recipe(cutout=0.5)
    assert Recipe(cutmix=1.0, single_label=True)
