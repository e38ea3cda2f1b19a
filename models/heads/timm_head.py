"""The own head of a timm model: whatever its `forward_head` does."""

from typing import Any, cast

from torch import Tensor, nn

from models.config import NetworkConfig, TimmHeadConfig
from models.timm_model import create_timm, is_channels_last


class TimmHead(nn.Module):
    """Maps the tokens of `forward_features`, whose number is fixed, to logits."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        assert isinstance(network.head, TimmHeadConfig)
        self.config = network.head
        size = (network.input.height, network.input.width)
        options = {"num_classes": self.config.num_classes}
        self.model = create_timm(network.backbone, size, options, network.model_args)
        for name, child in list(self.model.named_children()):
            if name not in self.config.parts and child.state_dict():
                setattr(self.model, name, nn.Identity())
        for name, _ in list(self.model.named_parameters(recurse=False)):
            delattr(self.model, name)
        self._channels_last = is_channels_last(self.model)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, S, C] to logits [B, N]."""
        features = tokens
        if self.config.grid is not None:
            features = tokens.unflatten(1, self.config.grid)  # [B, H, W, C]
            if not self._channels_last:
                features = features.permute(0, 3, 1, 2)
        return cast("Any", self.model).forward_head(features)
