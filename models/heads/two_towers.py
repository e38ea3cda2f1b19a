"""The open head of CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343): a scaled cosine.

An image's first token is its embedding; each other token is a patch's part of it, for the maps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import TwoTowerConfig


class TwoTowers(nn.Module):
    """Logits of labels in the space that image and text towers share."""

    def __init__(self, config: TwoTowerConfig) -> None:
        super().__init__()
        self.config = config
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def forward(self, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """Maps tokens [B, S, E] and label embeddings [L, E] to logits [B, L]."""
        return self.score(tokens, self.encode_labels(embeddings))

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings [L, E] to label queries [L, E] of length 1."""
        return functional.normalize(embeddings, dim=-1)

    def score(self, features: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens [B, S, E] and label queries [L, E] to logits [B, L]."""
        images = functional.normalize(features[:, 0], dim=-1)
        logits: Tensor = self.log_scale.exp() * (images @ queries.T) + self.bias
        return logits

    def remember(self, features: Tensor) -> Tensor:
        """Returns the tokens [B, S, E]."""
        return features

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:  # noqa: ARG002
        """Returns `score` of the memory, which is the tokens."""
        return self.score(memory, queries)
