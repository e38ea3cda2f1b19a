"""The head that ML-Decoder is compared with: average pooling and a linear layer."""

from torch import Tensor, nn

from models.config import GapConfig
from models.heads.attention import to_tokens

_GEM_EPSILON = 1e-6  # the usual code's value; not stored in files


class Gap(nn.Module):
    """Global average pooling and a linear layer."""

    def __init__(self, config: GapConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(config.encoder_width, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        return self.linear(self.dropout(self._pool(to_tokens(features))))

    def _pool(self, tokens: Tensor) -> Tensor:
        if self.config.pooling == "gem":
            power = self.config.power
            return tokens.clamp(min=_GEM_EPSILON).pow(power).mean(dim=1).pow(1 / power)
        return tokens[:, 0] if self.config.pooling == "first" else tokens.mean(dim=1)
