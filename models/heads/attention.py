"""Multi-head attention as every decoder head here uses it.

In: queries, keys and values. Out: what each query gathered. Differences from torch's
`MultiheadAttention`: three projections instead of a packed one, and queries may stay at
batch 1, so that an exporter folds what depends on them alone: their projection, and its product
with that of the keys. Used by `ml_decoder.py`, `zero_shot.py` and `query2label.py`.
"""

from __future__ import annotations

from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention from queries to keys and values.

    The batch of the queries may be 1 while that of the rest is B: the products broadcast.
    """

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        """Builds the four projections.

        Args:
            width: D, of queries, keys, values and output.
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

    def project(self, queries: Tensor) -> Tensor:
        """Projects and scales queries float [b, Q, D]: the part without an image."""
        projected: Tensor = self.query(queries) * self.head_width**-0.5
        return projected

    def attend(self, projected: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attends.

        Args:
            projected: what `project` gave, float [1 or B, Q, D].
            keys: float [B, S, D].
            values: float [B, S, D].

        Returns:
            float [B, Q, D].
        """
        return self._gather(self._score(projected, keys), values)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, fixed: bool = False
    ) -> Tensor:
        """Attends from queries float [1 or B, Q, D] to keys and values [B, S, D].

        Args:
            queries: what attends.
            keys: what it attends to.
            values: what it gathers.
            fixed: whether the queries, at batch 1, are the same for all images, and not those of
                an only one. Outside training they are then multiplied with the keys' projection,
                and not each image's keys, where that costs an image less.
        """
        projected = self.project(queries)
        if fixed and not self.training and self._is_cheaper_folded(queries.shape[1]):
            return self._gather(self._score_folded(projected, keys), values)
        return self.attend(projected, keys, values)

    def _is_cheaper_folded(self, num_queries: int) -> bool:
        # Products of a token: with every head's queries, or with the projection and as a key.
        width = self.num_heads * self.head_width
        return self.num_heads * num_queries * width < width * width + num_queries * width

    def _score(self, projected: Tensor, keys: Tensor) -> Tensor:
        scores: Tensor = self._split(projected) @ self._split(self.key(keys)).transpose(-2, -1)
        return scores  # [B, heads, Q, S]

    def _score_folded(self, projected: Tensor, keys: Tensor) -> Tensor:
        # The keys' bias adds the same to all scores of a query, which its softmax takes away.
        weight = self.key.weight.unflatten(0, (self.num_heads, self.head_width))
        folded = (self._split(projected)[0] @ weight).flatten(0, 1)  # [heads * Q, D]
        scores: Tensor = (keys @ folded.T).unflatten(-1, (self.num_heads, -1))
        return scores.permute(0, 2, 3, 1)  # [B, heads, Q, S]

    def _gather(self, scores: Tensor, values: Tensor) -> Tensor:
        weights = self.dropout(scores.softmax(dim=-1))
        mixed = weights @ self._split(self.value(values))  # [B, heads, Q, D / heads]
        gathered: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return gathered
