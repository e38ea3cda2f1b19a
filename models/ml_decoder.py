"""ML-Decoder: logits by cross-attention from fixed label queries to image tokens.

In: tokens float [B, S, C] (or a feature map [B, C, H, W]). Out: logits [B, N].
Written from the paper (arXiv 2111.12933, section 3). Differences from the authors' code:

1. The group fully-connected layer (section 3.3) is one batched matmul, not a loop.
2. Whatever depends on the queries alone is computed at batch 1 and broadcast, so an
   exporter can fold it to constants.
3. Groups that rounding leaves without a class are not built.
4. Query, key and value projections are separate layers, not one packed matrix.

`network.py` puts it behind a backbone; `checkpoints.py` reads the authors' weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import MLDecoderConfig
from models.tokens import to_tokens


class CrossAttention(nn.Module):
    """Multi-head attention from queries to tokens.

    The batch of the queries may be 1 while that of the tokens is B: the products
    broadcast.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        """Builds the four projections.

        Args:
            width: D, of queries, tokens and output.
            num_heads: attention heads; divides `width`.
            dropout: rate on the attention weights in training, 0..1.
        """
        super().__init__()
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out.bias)

    def _split(self, x: Tensor) -> Tensor:
        # [b, n, D] -> [b, heads, n, D / heads]
        heads: Tensor = x.unflatten(-1, (self.num_heads, self.head_width))
        return heads.transpose(1, 2)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Attends.

        Args:
            queries: float [1 or B, Q, D].
            tokens: float [B, S, D].

        Returns:
            float [B, Q, D].
        """
        query = self._split(self.query(queries) * self.head_width**-0.5)
        weights = query @ self._split(self.key(tokens)).transpose(-2, -1)  # [B, heads, Q, S]
        weights = self.dropout(weights.softmax(dim=-1))
        mixed = weights @ self._split(self.value(tokens))  # [B, heads, Q, D / heads]
        attended: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return attended


class DecoderLayer(nn.Module):
    """A transformer decoder layer without self-attention (section 3.2), post-norm."""

    def __init__(self, config: MLDecoderConfig) -> None:
        """Builds attention, feed-forward and three norms at the config's widths."""
        super().__init__()
        width, rate = config.decoder_width, config.dropout
        self.attention = CrossAttention(width, config.num_heads, rate)
        self.linear1 = nn.Linear(width, config.feedforward_width)
        self.linear2 = nn.Linear(config.feedforward_width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(rate)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Decodes.

        Args:
            queries: float [1 or B, Q, D].
            tokens: float [B, S, D].

        Returns:
            float [B, Q, D].
        """
        # The authors' layer keeps the residual of the self-attention it removed, so a
        # query is doubled before its norm; the norm's epsilon makes that visible.
        hidden = self.norm1(queries + self.dropout(queries))
        hidden = self.norm2(hidden + self.dropout(self.attention(hidden, tokens)))
        inner = self.dropout(functional.relu(self.linear1(hidden)))
        decoded: Tensor = self.norm3(hidden + self.dropout(self.linear2(inner)))
        return decoded


class GroupLinear(nn.Module):
    """Group fully-connected pooling (section 3.3): query q gives the logits of group q."""

    def __init__(self, num_queries: int, width: int, group_size: int, num_classes: int) -> None:
        """Builds weights for Q groups.

        Args:
            num_queries: Q.
            width: D.
            group_size: classes a group, G; Q * G is N or more.
            num_classes: N; logits past it are padding and cut off.
        """
        super().__init__()
        self.num_classes = num_classes
        self.weight = nn.Parameter(torch.empty(num_queries, width, group_size))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        nn.init.xavier_normal_(self.weight)

    def forward(self, decoded: Tensor) -> Tensor:
        """Maps decoded queries float [B, Q, D] to logits [B, N]."""
        # One matmul batched over the groups: [Q, B, D] @ [Q, D, G] -> [Q, B, G].
        grouped = decoded.transpose(0, 1) @ self.weight
        logits = grouped.transpose(0, 1).flatten(1)  # [B, Q * G]
        return logits[:, : self.num_classes] + self.bias


class MLDecoder(nn.Module):
    """The head: embedding, one decoder layer from fixed queries, group pooling."""

    queries: Tensor

    def __init__(self, config: MLDecoderConfig) -> None:
        """Builds the head with random fixed queries (section 3.2: they need no training)."""
        super().__init__()
        self.config = config
        width = config.decoder_width
        self.embed = nn.Linear(config.encoder_width, width)
        self.register_buffer("queries", torch.randn(config.num_queries, width))
        self.layer = DecoderLayer(config)
        self.pool = GroupLinear(config.num_queries, width, config.group_size, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Predicts.

        Args:
            features: float tokens [B, S, C] or feature map [B, C, H, W].

        Returns:
            Logits float [B, N].
        """
        tokens = functional.relu(self.embed(to_tokens(features)))  # [B, S, D]
        queries = self.queries.unsqueeze(0)  # [1, Q, D]
        if self.training:
            # Dropout on the queries has to differ from image to image.
            queries = queries.expand(len(tokens), -1, -1)
        logits: Tensor = self.pool(self.layer(queries, tokens))
        return logits
