"""The screen of an open head: estimates of the logits of all labels, to score the best only.

Not in the paper. A decoder layer spends nine tenths of a label's cost on the steps behind the
attention. Their first-order expansion at a reference value takes their place: a product of the
values with the label's readout. Pooled tokens make the attention cheaper too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.heads.attention import to_tokens
from models.heads.zero_shot import ZeroShotMLDecoder


class Screen(nn.Module):
    """Estimates the logits of a head in eval mode; it has no weights of its own."""

    reference: Tensor  # the mean value of photos, [D]; see `center`

    def __init__(self, head: ZeroShotMLDecoder, grid: tuple[int, int], stride: int = 2) -> None:
        """Pools tokens of a `grid` of rows and columns in squares of `stride`."""
        super().__init__()
        self.head = head
        self.grid = grid
        self.stride = stride
        self.register_buffer("reference", torch.zeros(head.config.decoder_width))

    @torch.no_grad()
    def center(self, tokens: Tensor) -> None:
        """Sets the reference to the mean value of photos, given as tokens [B, S, C]."""
        values = self.head.layer.attention.value(self.head.remember(tokens))
        self.reference.copy_(values.mean(dim=(0, 1)))

    def describe(self, queries: Tensor) -> Tensor:
        """Maps label queries [L, K] to keys [L, D + 1]: the readout of a value, and the offset.

        The readout is the gradient of the logit, without votes, with respect to the attended value
        before the output projection, at the reference.
        """
        layer, width = self.head.layer, self.head.config.decoder_width
        attended = queries[:, :width] + layer.attention.out(self.reference)
        hidden = layer.norm2(attended)
        inner = functional.relu(layer.linear1(hidden))
        decoded = hidden + layer.linear2(inner)
        logit = self.head.pool(layer.norm3(decoded))  # [L, 1]

        gradient = _differentiate(layer.norm3, decoded, self.head.pool.weight)
        passed = (gradient @ layer.linear2.weight) * (inner > 0)
        gradient = gradient + passed @ layer.linear1.weight
        gradient = _differentiate(layer.norm2, attended, gradient)
        readout = gradient @ layer.attention.out.weight
        return torch.cat([readout, logit - readout @ self.reference.unsqueeze(-1)], dim=-1)

    def look(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Maps tokens [B, S, C] to pooled keys and values of the attention, both [B, T, D]."""
        memory = self.head.remember(to_tokens(tokens))
        attention = self.head.layer.attention
        return self._pool(attention.key(memory)), self._pool(attention.value(memory))

    def estimate(self, looked: tuple[Tensor, Tensor], queries: Tensor, keys: Tensor) -> Tensor:
        """Maps what `look` and `describe` returned, and queries [L, K], to logits [B, L].

        The votes are not in them.
        """
        width, heads = self.head.config.decoder_width, self.head.layer.attention.num_heads
        places, values = (_split(x, heads) for x in looked)  # [B, heads, T, D / heads]
        projected = _split(queries[:, width : 2 * width], heads)  # [heads, L, D / heads]
        weights = (projected @ places.transpose(-2, -1)).softmax(dim=-1)  # [B, heads, L, T]
        worth = _split(keys[:, :width], heads) @ values.transpose(-2, -1)
        return (weights * worth).sum(dim=(1, 3)) + keys[:, width]

    def _pool(self, x: Tensor) -> Tensor:
        # [B, S, D] -> [B, T, D]
        plane = x.transpose(1, 2).unflatten(-1, self.grid)
        pooled = functional.avg_pool2d(plane, self.stride, ceil_mode=True, count_include_pad=False)
        return pooled.flatten(2).transpose(1, 2)


def _differentiate(norm: nn.LayerNorm, x: Tensor, gradient: Tensor) -> Tensor:
    """Carries the gradient [1 or L, D] of a norm's output back to its input x [L, D]."""
    centred = x - x.mean(dim=-1, keepdim=True)
    inverse = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()
    normal = centred * inverse
    scaled = gradient * norm.weight
    along = (scaled * normal).mean(dim=-1, keepdim=True)
    carried: Tensor = (scaled - scaled.mean(dim=-1, keepdim=True) - normal * along) * inverse
    return carried


def _split(x: Tensor, heads: int) -> Tensor:
    # [..., n, D] -> [..., heads, n, D / heads]
    parts: Tensor = x.unflatten(-1, (heads, -1))
    return parts.transpose(-3, -2)
