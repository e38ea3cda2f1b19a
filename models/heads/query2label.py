"""Query2Label (arXiv 2107.10834, section 3): learned label queries attend to encoded tokens.

The layers are DETR's, as in the authors' code: positions are added to queries and keys, never to
values; decoder targets start at zero. As in `ml_decoder.py`, steps without an image run at batch 1.
There is no dropout: no command trains this head.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.config import Query2LabelConfig
from models.heads.attention import Attention, to_tokens
from models.heads.ml_decoder import GroupLinear


class _Layer(nn.Module):
    """The parts of every layer: residual steps, with norms before or after each."""

    def __init__(self, config: Query2LabelConfig) -> None:
        super().__init__()
        width, inner = config.decoder_width, config.feedforward_width
        self.pre_norm = config.pre_norm
        self.attention = Attention(width, config.num_heads)
        self.feedforward = nn.Sequential(
            OrderedDict(
                linear1=nn.Linear(width, inner),
                relu=nn.ReLU(),
                linear2=nn.Linear(inner, width),
            )
        )
        self.norm2 = nn.LayerNorm(width)

    def _add(self, norm: nn.Module, x: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return x + step(norm(x))
        return norm(x + step(x))


class EncoderLayer(_Layer):
    """Self-attention between the tokens, then a feed-forward layer."""

    def __init__(self, config: Query2LabelConfig) -> None:
        super().__init__(config)
        self.norm1 = nn.LayerNorm(config.decoder_width)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Maps tokens [B, S, D] and positions [1, S, D] to tokens [B, S, D]."""
        tokens = self._add(
            self.norm1, tokens, lambda x: self.attention(placed := x + positions, placed, x)
        )
        return self._add(self.norm2, tokens, self.feedforward)


class QueryLayer(_Layer):
    """A decoder layer: queries attend to each other (optional), then to the tokens."""

    def __init__(self, config: Query2LabelConfig, self_attention: bool) -> None:
        super().__init__(config)
        width = config.decoder_width
        self.self_attention = Attention(width, config.num_heads) if self_attention else None
        self.norm1 = nn.LayerNorm(width) if self_attention else None
        self.norm3 = nn.LayerNorm(width)

    def forward(self, target: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Maps a target [1 or B, N, D] and queries [1, N, D] to the next target [B, N, D].

        Keys are tokens with positions, values tokens, [B, S, D].
        """
        attend, norm = self.self_attention, self.norm1
        if attend is not None and norm is not None:
            target = self._add(norm, target, lambda x: attend(placed := x + queries, placed, x))
        target = self._add(self.norm2, target, lambda x: self.attention(x + queries, keys, values))
        return self._add(self.norm3, target, self.feedforward)


class Query2Label(nn.Module):
    """Encoder layers, decoder layers from learned queries, pooling."""

    positions: Tensor  # of the file, which has DETR's sines (arXiv 2005.12872, appendix A.4)

    def __init__(self, config: Query2LabelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.decoder_width
        self.embed = (
            nn.Linear(config.encoder_width, width) if config.input_projection else nn.Identity()
        )
        self.register_buffer("positions", torch.zeros(1, math.prod(config.grid), width))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        has_norm = config.pre_norm and config.num_encoder_layers > 0
        self.encoder_norm = nn.LayerNorm(width) if has_norm else nn.Identity()
        self.queries = nn.Parameter(torch.randn(config.num_classes, width))
        self.decoder = nn.ModuleList(
            QueryLayer(config, attends) for attends in config.self_attention
        )
        self.norm = nn.LayerNorm(width)
        self.pool = GroupLinear(config.num_classes, width, 1, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] of the grid to logits [B, N]."""
        tokens = self.embed(to_tokens(features))  # [B, S, D]
        for layer in self.encoder:
            tokens = layer(tokens, self.positions)
        tokens = self.encoder_norm(tokens)
        queries = self.queries.unsqueeze(0)  # [1, N, D]
        target, keys = torch.zeros_like(queries), tokens + self.positions
        for layer in self.decoder:
            target = layer(target, queries, keys, tokens)
        return self.pool(self.norm(target))
