"""The open head of CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343): a scaled cosine.

An image's first token is its embedding; each other token is a patch's part of it, for the maps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import CosineConfig
from models.heads.open_head import OpenHead


class CosineHead(OpenHead):
    """Logits of labels in the space that image and text towers share; E = C = D = K."""

    config: CosineConfig

    def __init__(self, config: CosineConfig) -> None:
        super().__init__()
        self.config = config
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings to label queries of length 1."""
        return functional.normalize(embeddings, dim=-1)

    def remember(self, features: Tensor) -> Tensor:
        """Returns the tokens."""
        return features

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:  # noqa: ARG002
        """Scores the first token of the memory."""
        images = functional.normalize(memory[:, 0], dim=-1)
        return self.log_scale.exp() * (images @ queries.T) + self.bias
