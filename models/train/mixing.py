"""Batches of mixed photos: mixup for several labels a photo, timm's mixup and CutMix for one.

In: inputs [B, ...] and targets [B, N] of a batch. Out: both, mixed. Next: `losses.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor

from models.data.records import UNKNOWN
from models.train.recipe import Recipe

Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def make_mix(recipe: Recipe, num_classes: int, single_label: bool) -> Mix:
    """Returns what mixes a batch as the recipe says.

    Args:
        recipe: `mixup` and `cutmix`.
        num_classes: N.
        single_label: targets are one-hot; the mixed ones are shares.
    """
    if not single_label:
        return lambda inputs, targets: mix(inputs, targets, recipe.mixup)
    if not (recipe.mixup or recipe.cutmix):
        return lambda inputs, targets: (inputs, targets)
    blend = Mixup(recipe.mixup, recipe.cutmix, label_smoothing=0.0, num_classes=num_classes)

    def mix_pairs(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        even = len(inputs) // 2 * 2  # timm mixes a batch with its own reverse
        mixed: tuple[Tensor, Tensor] = blend(inputs[:even].clone(), targets[:even].argmax(dim=1))
        return mixed

    return mix_pairs


def mix(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mixes each example with another of its batch (mixup, arXiv 1710.09412).

    The mixed targets are the union of both label sets: an object that is half transparent
    is still there, and the asymmetric loss wants 0/1 targets.

    Args:
        inputs: float [B, ...].
        targets: 1, 0 or -1 (unknown), float [B, N].
        alpha: of the Beta distribution; 0 changes nothing.
    """
    if alpha == 0:
        return inputs, targets
    share = float(np.random.default_rng(random.getrandbits(32)).beta(alpha, alpha))
    other = torch.randperm(len(inputs), device=inputs.device)
    union = torch.maximum(targets, targets[other])
    unsure = (torch.minimum(targets, targets[other]) == UNKNOWN) & (union < 1)
    return inputs.lerp(inputs[other], 1 - share), union.masked_fill(unsure, UNKNOWN)
