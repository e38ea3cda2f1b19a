"""ML-Decoder (arXiv 2111.12933, section 3): fixed label queries attend to image tokens.

Differences from the authors' code, none of which changes a logit:

1. The group fully-connected layer (section 3.3) is one batched matmul instead of a loop.
2. Steps that depend only on the queries run at batch 1, so an exporter folds them to constants.
3. Groups that rounding leaves without a class are not built.
4. Query, key and value projections are separate layers instead of one packed matrix.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import DecoderConfig, MLDecoderConfig
from models.heads.attention import Attention, to_tokens


class MLDecoder(nn.Module):
    """Embedding, one decoder layer from fixed, random queries (section 3.2), group pooling."""

    queries: Tensor

    def __init__(self, config: MLDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.decoder_width
        self.embed = nn.Linear(config.encoder_width, width)
        self.register_buffer("queries", torch.randn(config.num_queries, width))
        self.layer = DecoderLayer(config)
        self.pool = GroupLinear(config.num_queries, width, config.group_size, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        return self.recall(self.remember(features))

    def remember(self, features: Tensor) -> Tensor:
        """Maps features to the memory [B, S, D] that the queries attend to."""
        return functional.relu(self.embed(to_tokens(features)))

    def recall(self, memory: Tensor) -> Tensor:
        """Maps memory [B, S, D] to logits [B, N]."""
        queries = self.queries.unsqueeze(0)  # [1, Q, D]
        if self.training:
            # Dropout on the queries must differ from image to image.
            queries = queries.expand(len(memory), -1, -1)
        return self.pool(self.layer(queries, memory))


class DecoderLayer(nn.Module):
    """A post-norm transformer decoder layer without self-attention (section 3.2)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, rate = config.decoder_width, config.dropout
        self.attention = Attention(width, config.num_heads, rate)
        self.linear1 = nn.Linear(width, config.feedforward_width)
        self.linear2 = nn.Linear(config.feedforward_width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(rate)

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        """Decodes queries [1 or B, Q, D] over memory [B, S, D] to [B, Q, D]."""
        hidden = self.prepare(queries)
        return self._refine(hidden, self.attention(hidden, memory, memory))

    def prepare(self, queries: Tensor) -> Tensor:
        """Normalises queries [b, Q, D]: the part that needs no image."""
        # The authors' layer keeps the residual of the removed self-attention, so a query is
        # doubled before its norm; only the norm's epsilon makes that visible.
        return self.norm1(queries + self.dropout(queries))

    def decode(self, hidden: Tensor, projected: Tensor, memory: Tensor) -> Tensor:
        """Continues from `prepare` and `attention.project` of it, both [1 or B, Q, D]."""
        return self._refine(hidden, self.attention.attend(projected, memory, memory))

    def _refine(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = self.norm2(hidden + self.dropout(attended))
        inner = self.dropout(functional.relu(self.linear1(hidden)))
        return self.norm3(hidden + self.dropout(self.linear2(inner)))


class GroupLinear(nn.Module):
    """Group fully-connected pooling (section 3.3): query q gives the logits of its G classes.

    Q * G is at least N; logits from N on are padding and cut off.
    """

    def __init__(self, num_queries: int, width: int, group_size: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.weight = nn.Parameter(torch.empty(num_queries, width, group_size))
        self.bias = nn.Parameter(torch.zeros(num_classes))
        nn.init.xavier_normal_(self.weight)

    def forward(self, decoded: Tensor) -> Tensor:
        """Maps decoded queries [B, Q, D] to logits [B, N]."""
        # One matmul batched over the groups: [Q, B, D] @ [Q, D, G] -> [Q, B, G].
        grouped = decoded.transpose(0, 1) @ self.weight
        logits = grouped.transpose(0, 1).flatten(1)  # [B, Q * G]
        return logits[:, : self.num_classes] + self.bias
