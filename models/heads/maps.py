"""Maps: how much each image token contributes to a label's logit.

`docs/explain.md` has the formula. Related: arXiv 2004.10102, 2103.15679. Attention without values
misleads: a label that the image does not show attends to empty background.
"""

import math

import torch
from torch import Tensor, nn

from models.heads.attention import Attention
from models.heads.cosine import CosineHead
from models.heads.ml_decoder import DecoderLayer, MLDecoder
from models.heads.zero_shot import ZeroShotMLDecoder


class _Maps(nn.Module):
    """Positive contributions, smoothed, as shares of the maximum.

    A token sees far beyond its cell: one whose neighbours agree lies next to the object less often.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("rows", _smoothing(grid[0]))
        self.register_buffer("columns", _smoothing(grid[1]))

    def draw(self, contributions: Tensor) -> Tensor:
        """Maps contributions [B, L, S] to maps [B, L, rows, columns], 0..1."""
        positive = contributions.relu().unflatten(-1, self.grid)
        smooth = self.rows @ positive @ self.columns.T
        largest = smooth.amax(dim=(-2, -1), keepdim=True)
        return smooth / largest.clamp_min(torch.finfo(smooth.dtype).tiny)


class TrainedMaps(_Maps):
    """Maps of trained labels, by their groups' queries; copies a head in eval mode."""

    queries: Tensor
    readout: Tensor

    def __init__(self, head: MLDecoder, grid: tuple[int, int]) -> None:
        super().__init__(grid)
        config, layer = head.config, head.layer
        self.group_size = config.group_size
        self.contributions = Contributions(layer.attention)
        with torch.no_grad():
            weights = head.pool.weight.transpose(1, 2).flatten(0, 1)  # [Q * G, D]
            queries = layer.attention.project(layer.prepare(head.queries))
            self.register_buffer("queries", queries)  # [Q, D]
            self.register_buffer("readout", _carry_back(layer, weights[: config.num_classes]))

    def forward(self, memory: Tensor, labels: Tensor) -> Tensor:
        """Maps memory [B, S, D] and labels int64 [L], 0..N-1, to maps [B, L, rows, columns]."""
        queries = self.queries[labels // self.group_size]  # [L, D]
        return self.draw(self.contributions(memory, queries, self.readout[labels]))


class OpenMaps(_Maps):
    """Maps of open labels: of the decoder's logit, without the votes of `name_votes.py`."""

    readout: Tensor

    def __init__(self, head: ZeroShotMLDecoder, grid: tuple[int, int]) -> None:
        super().__init__(grid)
        self.width = head.config.decoder_width
        self.contributions = Contributions(head.layer.attention)
        with torch.no_grad():
            self.register_buffer("readout", _carry_back(head.layer, head.pool.weight))  # [1, D]

    def forward(self, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps memory [B, S, D] and label queries [L, K] to maps [B, L, rows, columns]."""
        projected = queries[:, self.width : 2 * self.width]  # [L, D]
        return self.draw(self.contributions(memory, projected, self.readout))


class CosineMaps(_Maps):
    """Maps of open labels from patches' parts of the image's embedding, which is token 0."""

    def forward(self, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps memory [B, 1 + S, E] and label queries [L, E] to maps [B, L, rows, columns]."""
        return self.draw(queries @ memory[:, 1:].transpose(1, 2))


def make_maps(
    head: MLDecoder | ZeroShotMLDecoder | CosineHead, grid: tuple[int, int]
) -> tuple[nn.Module, int]:
    """Returns the maps of a head and the number of tokens [B, S, C] that they need."""
    cells = math.prod(grid)
    if isinstance(head, CosineHead):
        return CosineMaps(grid), 1 + cells
    return TrainedMaps(head, grid) if isinstance(head, MLDecoder) else OpenMaps(head, grid), cells


class Contributions(nn.Module):
    """Contribution of each token to each label's logit, from the projections of an attention.

    Biases are left out: the keys' cancels in the softmax, the values' is the same for all images.
    """

    key: Tensor
    value: Tensor

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        with torch.no_grad():
            for name, layer in (("key", attention.key), ("value", attention.value)):
                weight = layer.weight.unflatten(0, (self.num_heads, -1))  # [heads, D / heads, D]
                self.register_buffer(name, weight.clone())

    def forward(self, memory: Tensor, queries: Tensor, readout: Tensor) -> Tensor:
        """Returns contributions [B, L, S], up to a positive factor for each image.

        Queries [L, D] are of `Attention.project`; the readout [L or 1, D] maps values to the logit.
        """
        # Multiplies the few labels by the projections instead of all tokens.
        scores = self._multiply(memory, queries, self.key)  # [B, L, heads, S]
        values = self._multiply(memory, readout, self.value)  # [B, L or 1, heads, S]
        return (scores.softmax(dim=-1) * values).sum(dim=2)

    def _multiply(self, memory: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        # [heads, L, D / heads] @ [heads, D / heads, D] -> [heads, L, D]
        parts = labels.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) @ weight
        rows = parts.transpose(0, 1).flatten(0, 1)  # [L * heads, D]
        products: Tensor = rows @ memory.transpose(1, 2)  # [B, L * heads, S]
        return products.unflatten(1, (-1, self.num_heads))


def find_grid(num_tokens: int, height: int, width: int) -> tuple[int, int] | None:
    """Returns rows and columns of square patches; None if no patch size gives the number."""
    for stride in range(1, max(height, width) + 1):
        rows, columns = math.ceil(height / stride), math.ceil(width / stride)
        if rows * columns == num_tokens:
            return rows, columns
    return None


def _carry_back(layer: DecoderLayer, weights: Tensor) -> Tensor:
    """Carries weights [n, D] on decoded queries back to the values."""
    gains = layer.norm2.weight * layer.norm3.weight
    return (weights * gains) @ layer.attention.out.weight


def _smoothing(size: int) -> Tensor:
    """Returns [size, size]: half of a cell, a quarter of each neighbour; an edge is its own."""
    cells = torch.arange(size)
    matrix = 0.5 * torch.eye(size)
    for neighbours in ((cells - 1).clamp_min(0), (cells + 1).clamp_max(size - 1)):
        matrix[cells, neighbours] += 0.25
    return matrix
