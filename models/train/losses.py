"""Losses of labelled photos, from timm, and the augmentation of photos and queries in a batch.

Targets are 1, 0 or -1 (unknown); an unknown label gives neither loss nor gradient.
"""

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from timm.loss import AsymmetricLossMultiLabel, BinaryCrossEntropy
from torch import Tensor

from models.data.records import UNKNOWN
from models.train.recipe import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]
Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_ABSENT_LOGIT = -1e4  # its sigmoid is 0 in float16 too


def make_loss(recipe: Recipe) -> Loss:
    """Returns the recipe's loss of logits [B, N] and targets [B, N], a mean over the photos.

    `asymmetric` is summed over the labels. `bce` is their mean, with mixed targets made 0/1 at
    `bce_threshold` as in arXiv 2110.00476.
    """
    if recipe.loss == "bce":
        loss: Loss = BinaryCrossEntropy(smoothing=0.0, target_threshold=recipe.bce_threshold)
    else:
        gammas = recipe.gamma_neg, recipe.gamma_pos
        loss = asymmetric_loss(*gammas, recipe.clip, recipe.focal_gradient)

    def compute(logits: Tensor, targets: Tensor) -> Tensor:
        unknown = targets < 0
        logits = logits.masked_fill(unknown, _ABSENT_LOGIT)
        return loss(logits, targets.masked_fill(unknown, 0.0))

    return compute


def asymmetric_loss(
    gamma_neg: float, gamma_pos: float, clip: float, focal_gradient: bool = True
) -> Loss:
    """Returns timm's asymmetric loss (arXiv 2009.14119), summed over labels, a mean over photos."""
    known = inspect.signature(AsymmetricLossMultiLabel).parameters
    # Newer versions of timm take the mean over the batch by default; older ones always sum.
    reduction: dict[str, Any] = {"reduction": "sum"} if "reduction" in known else {}
    loss = AsymmetricLossMultiLabel(
        gamma_neg, gamma_pos, clip, disable_torch_grad_focal_loss=not focal_gradient, **reduction
    )
    return lambda logits, targets: loss(logits, targets) / len(logits)


def make_mix(recipe: Recipe, num_classes: int) -> Mix:
    """Returns the function that mixes inputs [B, ...] and targets [B, N] as the recipe says.

    Single-label targets are one-hot and become shares; timm mixes these with mixup and CutMix.
    """
    if not recipe.single_label:
        return lambda inputs, targets: mix(inputs, targets, recipe.mixup)
    if not (recipe.mixup or recipe.cutmix):
        return lambda inputs, targets: (inputs, targets)
    blend = Mixup(recipe.mixup, recipe.cutmix, label_smoothing=0.0, num_classes=num_classes)

    def mix_pairs(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        even = len(inputs) // 2 * 2  # timm mixes a batch with its own reverse
        return blend(inputs[:even].clone(), targets[:even].argmax(dim=1))

    return mix_pairs


def mix(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mixes inputs [B, ...] in a batch (mixup, arXiv 1710.09412); alpha 0 changes nothing.

    The mixed targets [B, N] are the union of both label sets: a half-transparent object is still
    there, and the asymmetric loss needs 0/1 targets.
    """
    if alpha == 0:
        return inputs, targets
    share = float(np.random.default_rng(random.getrandbits(32)).beta(alpha, alpha))
    other = torch.randperm(len(inputs), device=inputs.device)
    union = torch.maximum(targets, targets[other])
    unsure = (torch.minimum(targets, targets[other]) == UNKNOWN) & (union < 1)
    return inputs.lerp(inputs[other], 1 - share), union.masked_fill(unsure, UNKNOWN)


def augment_queries(
    embeddings: Tensor, targets: Tensor, num_random: int, noise: float
) -> tuple[Tensor, Tensor]:
    """Augments the label queries of zero-shot training (arXiv 2111.12933, section 3.4).

    Maps embeddings [L, E], L at least 2, and targets [B, L] to [L + R, E] and [B, L + R]: adds
    noise, a share of the embeddings' own deviation, and R random queries with the target 0.
    """
    deviation, mean = embeddings.std(dim=0), embeddings.mean(dim=0)  # [E]
    noisy = embeddings + noise * deviation * torch.randn_like(embeddings)
    size = (num_random, embeddings.shape[1])
    random_queries = mean + deviation * torch.randn(size, device=embeddings.device)
    absent = targets.new_zeros(len(targets), num_random)
    return torch.cat([noisy, random_queries]), torch.cat([targets, absent], dim=1)
