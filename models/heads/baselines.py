"""The head that ML-Decoder is compared with: average pooling and a linear layer."""

from torch import Tensor, nn

from models.config import GapConfig
from models.heads.attention import to_tokens


class Gap(nn.Module):
    """Global average pooling and a linear layer."""

    def __init__(self, config: GapConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(config.encoder_width, config.num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] or features [B, C, H, W] to logits [B, N]."""
        return self.linear(self.dropout(to_tokens(features).mean(dim=1)))
