"""Global average pooling head, the baseline that ML-Decoder is compared with.

In: tokens float [B, S, C] (or a feature map). Out: logits [B, N].
"""

from __future__ import annotations

from torch import Tensor, nn

from models.config import GapConfig
from models.heads.tokens import to_tokens


class Gap(nn.Module):
    """Mean over the tokens, then one linear layer."""

    def __init__(self, config: GapConfig) -> None:
        """Builds the linear layer [C -> N]."""
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(config.encoder_width, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        pooled = to_tokens(features).mean(dim=1)  # [B, C]
        logits: Tensor = self.linear(self.dropout(pooled))
        return logits
