"""Feature maps to tokens: the one layout that every head takes.

In: what a backbone gives. Out: tokens float [B, S, C]. Used by `backbone.py` and the heads.
"""

from __future__ import annotations

from torch import Tensor


def to_tokens(features: Tensor) -> Tensor:
    """Flattens the positions of a feature map.

    Args:
        features: float [B, C, H, W], or tokens [B, S, C], which pass through.

    Returns:
        Tokens float [B, S, C], S = H * W in row order.

    Raises:
        ValueError: any other number of dimensions.
    """
    if features.dim() == 3:
        return features
    if features.dim() == 4:
        return features.flatten(2).transpose(1, 2)  # [B, C, H, W] -> [B, H * W, C]
    raise ValueError(f"features have {features.dim()} dimensions, wanted 3 or 4")
