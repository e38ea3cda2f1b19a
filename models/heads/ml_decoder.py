"""ML-Decoder: logits by cross-attention from fixed label queries to image tokens.

In: tokens float [B, S, C] (or a feature map [B, C, H, W]). Out: logits [B, N].
Written from the paper (arXiv 2111.12933, section 3). Differences from the authors' code:

1. The group fully-connected layer (section 3.3) is one batched matmul, not a loop.
2. Whatever depends on the queries alone is computed at batch 1 and broadcast, so an
   exporter can fold it to constants.
3. Groups that rounding leaves without a class are not built.
4. Query, key and value projections are separate layers, not one packed matrix.

`zero_shot.py` takes its queries from text; `network.py` puts it behind a backbone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import DecoderConfig, MLDecoderConfig
from models.heads.attention import Attention
from models.heads.tokens import to_tokens


class DecoderLayer(nn.Module):
    """A transformer decoder layer without self-attention (section 3.2), post-norm."""

    def __init__(self, config: DecoderConfig) -> None:
        """Builds attention, feed-forward and three norms at the config's widths."""
        super().__init__()
        width, rate = config.decoder_width, config.dropout
        self.attention = Attention(width, config.num_heads, rate)
        self.linear1 = nn.Linear(width, config.feedforward_width)
        self.linear2 = nn.Linear(config.feedforward_width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(rate)

    def prepare(self, queries: Tensor) -> Tensor:
        """Normalises queries float [b, Q, D]: the part without an image, with `project`."""
        # The authors' layer keeps the residual of the self-attention it removed, so a
        # query is doubled before its norm; the norm's epsilon makes that visible.
        hidden: Tensor = self.norm1(queries + self.dropout(queries))
        return hidden

    def decode(self, hidden: Tensor, projected: Tensor, tokens: Tensor) -> Tensor:
        """Decodes prepared queries.

        Args:
            hidden: what `prepare` gave, float [1 or B, Q, D].
            projected: what `attention.project` gave of it, float [1 or B, Q, D].
            tokens: float [B, S, D].

        Returns:
            float [B, Q, D].
        """
        return self._refine(hidden, self.attention.attend(projected, tokens, tokens))

    def _refine(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.norm2(hidden + self.dropout(attended))
        inner = self.dropout(functional.relu(self.linear1(hidden)))
        decoded: Tensor = self.norm3(hidden + self.dropout(self.linear2(inner)))
        return decoded

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Decodes queries float [1 or B, Q, D] over tokens [B, S, D] to [B, Q, D]."""
        hidden = self.prepare(queries)
        fixed = queries.shape[0] == 1
        return self._refine(hidden, self.attention(hidden, tokens, tokens, fixed=fixed))


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
        return self.recall(self.remember(features))

    def remember(self, features: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] or a feature map to the memory that queries attend to.

        Returns:
            float [B, S, D].
        """
        return functional.relu(self.embed(to_tokens(features)))

    def recall(self, memory: Tensor) -> Tensor:
        """Maps memory float [B, S, D] to logits [B, N]."""
        queries = self.queries.unsqueeze(0)  # [1, Q, D]
        if self.training:
            # Dropout on the queries has to differ from image to image.
            queries = queries.expand(len(memory), -1, -1)
        logits: Tensor = self.pool(self.layer(queries, memory))
        return logits


class ScorerWithMemory(nn.Module):
    """The head as a module that can be traced, with the memory beside the logits."""

    def __init__(self, head: MLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Maps tokens float [B, S, C] to logits [B, N] and memory [B, S, D]."""
        memory = self.head.remember(tokens)
        return self.head.recall(memory), memory
