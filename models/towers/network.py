"""An image tower and the product with labels: images and label embeddings -> logits."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import CLIPModel, SiglipModel

from models.config import NetworkConfig, TwoTowerConfig
from models.heads.two_towers import TwoTowers
from models.towers.images import ClipImages, SiglipImages


class TowerNetwork(nn.Module):
    """The backbone (images -> tokens [B, 1 + S, E]) and head of a model of `transformers`."""

    def __init__(self, config: NetworkConfig, model: CLIPModel | SiglipModel) -> None:
        super().__init__()
        assert isinstance(config.head, TwoTowerConfig)
        self.config = config
        self.backbone: ClipImages | SiglipImages
        self.head = TwoTowers(config.head)
        self.head.log_scale.data.copy_(model.logit_scale.squeeze())
        if isinstance(model, SiglipModel):
            self.backbone = SiglipImages(model)
            self.head.bias.data.copy_(model.logit_bias.squeeze())
        else:
            self.backbone = ClipImages(model)

    def forward(self, images: Tensor, embeddings: Tensor) -> Tensor:
        """Maps normalised images [B, 3, H, W] and embeddings [L, E] to logits [B, L]."""
        logits: Tensor = self.head(self.backbone(images), embeddings)
        return logits
