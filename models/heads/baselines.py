"""Heads that ML-Decoder is compared with: average pooling and a plain transformer decoder."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import GapConfig, TransformerDecoderConfig
from models.heads.attention import to_tokens
from models.heads.ml_decoder import GroupLinear
from models.heads.query2label import QueryLayer, decode

_GEM_EPSILON = 1e-6  # the usual code's value; not stored in files


class Gap(nn.Module):
    """Global average pooling and a linear layer, or two as in MobileNetV3."""

    def __init__(self, config: GapConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        width, epsilon = config.encoder_width, config.norm_epsilon
        self.norm = nn.Identity() if epsilon is None else nn.LayerNorm(width, epsilon)
        self.hidden: nn.Module = nn.Identity()
        if config.hidden_width is not None:
            activation = nn.Hardswish() if config.hidden_activation == "hardswish" else nn.ReLU()
            self.hidden = nn.Sequential(nn.Linear(width, config.hidden_width), activation)
        self.linear = nn.Linear(config.hidden_width or width, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        pooled = self._pool(to_tokens(features))  # [B, C]
        return self.linear(self.dropout(self.hidden(self.norm(pooled))))

    def _pool(self, tokens: Tensor) -> Tensor:
        if self.config.pooling == "gem":
            power = self.config.power
            return tokens.clamp(min=_GEM_EPSILON).pow(power).mean(dim=1).pow(1 / power)
        return tokens[:, 0] if self.config.pooling == "first" else tokens.mean(dim=1)


class TransformerDecoder(nn.Module):
    """Decoder layers with self-attention between learned queries, one query a class."""

    def __init__(self, config: TransformerDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width, num_classes = config.decoder_width, config.num_classes
        self.embed = nn.Linear(config.encoder_width, width)
        self.queries = nn.Parameter(torch.randn(num_classes, width))
        self.decoder = nn.ModuleList(
            QueryLayer(config, self_attention=True, pre_norm=False)
            for _ in range(config.num_layers)
        )
        self.pool = GroupLinear(num_classes, width, 1, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        tokens = functional.relu(self.embed(to_tokens(features)))  # [B, S, D]
        return self.pool(decode(self.decoder, self.queries, tokens, tokens))
