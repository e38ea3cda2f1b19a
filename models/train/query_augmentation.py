"""Query augmentations for zero-shot training (arXiv 2111.12933, section 3.4).

In: label embeddings [L, E] and targets [B, L] of a batch. Out: both, augmented, so that the
head meets queries that no trained label has. Used by `train`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class QueryAugmentation:
    """Noise on the queries, and random queries that no photo answers.

    Attributes:
        num_random: R, random queries added to a batch, with the target 0 on every photo.
        noise: standard deviation of the noise on an embedding, as a share of the
            embeddings' own.
    """

    num_random: int = 0
    noise: float = 0.0

    def augment(self, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (embeddings [L + R, E], targets [B, L + R]).

        Args:
            embeddings: float [L, E], L at least 2.
            targets: float [B, L].
        """
        spread = embeddings.std(dim=0)  # [E]
        noisy = embeddings + self.noise * spread * torch.randn_like(embeddings)
        mean = embeddings.mean(dim=0)
        random = mean + spread * torch.randn(
            self.num_random, embeddings.shape[1], device=embeddings.device
        )
        absent = targets.new_zeros(len(targets), self.num_random)
        return torch.cat([noisy, random]), torch.cat([targets, absent], dim=1)
