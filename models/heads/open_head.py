"""Heads for open labels: what export, maps and training share."""

from torch import Tensor, nn

from models.config import OpenHeadConfig
from models.heads.attention import to_tokens


class OpenHead(nn.Module):
    """Encodes labels without an image, then scores them; no logit depends on other labels."""

    config: OpenHeadConfig

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings [L, E] to label queries [L, K]."""
        raise NotImplementedError

    def remember(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to the memory [B, S, D]."""
        raise NotImplementedError

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens [B, S, C], their memory [B, S, D] and queries [L, K] to logits [B, L]."""
        raise NotImplementedError

    def score(self, features: Tensor, queries: Tensor) -> Tensor:
        """Maps features and label queries [L, K] to logits [B, L]."""
        tokens = to_tokens(features)
        return self.recall(tokens, self.remember(tokens), queries)

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Maps features and label embeddings [L, E] to logits [B, L]."""
        return self.score(features, self.encode_labels(embeddings))
