"""Zero-shot ML-Decoder: logits of any label, from the embedding of its text.

In: tokens float [B, S, C] (or a feature map) and label embeddings [L, E]. Out: logits [B, L].
Written from the paper (arXiv 2111.12933, section 3.4): text embedding -> linear -> ReLU ->
label query; the decoder of `ml_decoder.py`; one pooling shared by all labels, since a label
that was never trained can have none of its own. What depends on a label alone is a module of
its own, which a service runs once a label. Next: `network.py`; `query_augmentation.py` trains it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import ZeroShotMLDecoderConfig
from models.ml_decoder import DecoderLayer
from models.tokens import to_tokens


class ZeroShotMLDecoder(nn.Module):
    """The head for open labels."""

    def __init__(self, config: ZeroShotMLDecoderConfig) -> None:
        """Builds the projection of the text, the decoder layer and the shared pooling."""
        super().__init__()
        self.config = config
        width = config.decoder_width
        self.project = nn.Linear(config.embedding_width, width)
        self.embed = nn.Linear(config.encoder_width, width)
        self.layer = DecoderLayer(config)
        self.pool = nn.Linear(width, 1)

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Computes all that depends on the labels alone.

        Args:
            embeddings: float [L, E].

        Returns:
            Label queries float [L, 2 * D]: the normalised queries and their projections for
            the attention, side by side.
        """
        hidden = self.layer.prepare(functional.relu(self.project(embeddings)))  # [L, D]
        return torch.cat([hidden, self.layer.attention.project(hidden)], dim=-1)

    def score(self, features: Tensor, queries: Tensor) -> Tensor:
        """Scores encoded labels; each label's logit is independent of the others.

        Args:
            features: float tokens [B, S, C] or feature map [B, C, H, W].
            queries: float [L, 2 * D], of `encode_labels`.

        Returns:
            Logits float [B, L].
        """
        tokens = functional.relu(self.embed(to_tokens(features)))  # [B, S, D]
        hidden, projected = queries.unsqueeze(0).chunk(2, dim=-1)  # [1, L, D] each
        decoded = self.layer.decode(hidden, projected, tokens)  # [B, L, D]
        logits: Tensor = self.pool(decoded).squeeze(-1)
        return logits

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Maps features and label embeddings float [L, E] to logits [B, L]."""
        return self.score(features, self.encode_labels(embeddings))


class LabelEncoder(nn.Module):
    """`encode_labels` as a module that can be traced."""

    def __init__(self, head: ZeroShotMLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, embeddings: Tensor) -> Tensor:
        """Maps embeddings float [L, E] to label queries [L, 2 * D]."""
        return self.head.encode_labels(embeddings)


class LabelScorer(nn.Module):
    """`score` as a module that can be traced."""

    def __init__(self, head: ZeroShotMLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] and label queries [L, 2 * D] to logits [B, L]."""
        return self.head.score(tokens, queries)
