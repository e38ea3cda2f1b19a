"""Backbone and head together: images -> logits, as trained, checkpointed and exported.

In: a `NetworkConfig`. Out: a `Network`, whose two parts the export traces apart.
`checkpoints.py` stores and reads it.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.backbone import Backbone
from models.config import GapConfig, HeadConfig, NetworkConfig
from models.gap import Gap
from models.ml_decoder import MLDecoder


class Network(nn.Module):
    """A backbone (images -> tokens) and a head (tokens -> logits).

    Attributes:
        config: what was built.
        backbone: normalised images float [B, 3, H, W] -> tokens [B, S, C].
        head: tokens [B, S, C] -> logits [B, N].
    """

    def __init__(self, config: NetworkConfig) -> None:
        """Builds both parts with random weights.

        Raises:
            ValueError: the backbone is unknown, or its width is not the head's.
        """
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone, (config.input.height, config.input.width))
        if self.backbone.width != config.head.encoder_width:
            raise ValueError(
                f"{config.backbone} gives tokens of width {self.backbone.width}, "
                f"the head takes {config.head.encoder_width}"
            )
        self.head = build_head(config.head)

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images float [B, 3, H, W] to logits [B, N]."""
        logits: Tensor = self.head(self.backbone(images))
        return logits


def build_head(config: HeadConfig) -> nn.Module:
    """Builds the head that a configuration describes, with random weights."""
    if isinstance(config, GapConfig):
        return Gap(config)
    return MLDecoder(config)
