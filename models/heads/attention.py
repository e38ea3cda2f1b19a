"""Shared by all heads: tokens [B, S, C], and multi-head attention over them.

Query, key and value have separate projections; queries may have batch 1, exported as constants.
"""

from torch import Tensor, nn


def to_tokens(features: Tensor) -> Tensor:
    """Flattens a feature map [B, C, H, W] to tokens [B, H * W, C]; tokens pass through."""
    if features.dim() == 3:
        return features
    if features.dim() == 4:
        return features.flatten(2).transpose(1, 2)
    raise ValueError(f"features must have 3 or 4 dimensions, not {features.dim()}")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Splits [b, n, D] into [b, heads, n, D / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Attention from queries [1 or B, Q, D] to keys and values [B, S, M], where D is the width."""

    def __init__(
        self, width: int, num_heads: int, dropout: float = 0.0, memory_width: int | None = None
    ) -> None:
        super().__init__()
        memory_width = memory_width or width
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(memory_width, width)
        self.value = nn.Linear(memory_width, width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Gathers values for each query, [B, Q, D]."""
        return self.attend(self.project(queries), keys, values)

    def project(self, queries: Tensor) -> Tensor:
        """Projects and scales queries [b, Q, D]: the part that needs no image."""
        return self.query(queries) * self.head_width**-0.5

    def attend(self, projected: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Continues from `project`: [1 or B, Q, D] and [B, S, M] to [B, Q, D]."""
        parts = (projected, self.key(keys), self.value(values))
        queries, keys, values = (split_heads(part, self.num_heads) for part in parts)
        weights = self.dropout((queries @ keys.transpose(-2, -1)).softmax(dim=-1))
        mixed = weights @ values  # [B, heads, Q, D / heads]
        return self.out(mixed.transpose(1, 2).flatten(2))
