"""Backbone and head together: images -> logits, as trained, checkpointed and exported."""

from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.config import (
    CosineConfig,
    GapConfig,
    HeadConfig,
    MLDecoderConfig,
    NetworkConfig,
    Query2LabelConfig,
    RamConfig,
    TimmHeadConfig,
    ZeroShotMLDecoderConfig,
)
from models.heads.baselines import Gap
from models.heads.cosine import CosineHead
from models.heads.ml_decoder import MLDecoder
from models.heads.query2label import Query2Label
from models.heads.ram import Ram
from models.heads.timm_head import TimmHead
from models.heads.zero_shot import ZeroShotMLDecoder

HEADS: dict[type[HeadConfig], type[nn.Module]] = {
    GapConfig: Gap,
    MLDecoderConfig: MLDecoder,
    ZeroShotMLDecoderConfig: ZeroShotMLDecoder,
    Query2LabelConfig: Query2Label,
    RamConfig: Ram,
    CosineConfig: CosineHead,
}


class Network(nn.Module):
    """A backbone (images -> tokens [B, S, C]) and a head (tokens -> logits [B, N]).

    Raises ValueError if the backbone is unknown, or its width is not the head's.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = build_backbone(config)
        if self.backbone.width != config.head.encoder_width:
            raise ValueError(
                f"{config.backbone} gives tokens of width {self.backbone.width}, "
                f"the head takes {config.head.encoder_width}"
            )
        is_timm = isinstance(config.head, TimmHeadConfig)
        self.head = TimmHead(config) if is_timm else build_head(config.head)

    def forward(self, images: Tensor, *embeddings: Tensor) -> Tensor:
        """Maps normalised images [B, 3, H, W] (and embeddings [L, E]) to logits [B, N or L]."""
        return self.head(self.backbone(images), *embeddings)


def build_backbone(config: NetworkConfig) -> Backbone:
    """Builds a network's backbone with random weights."""
    head = config.head
    return Backbone(
        config.backbone,
        (config.input.height, config.input.width),
        config.prefix_tokens,
        config.features,
        norm_pooled=config.norm_pooled,
        model_args=config.model_args,
        own_head=head if isinstance(head, TimmHeadConfig) else None,
    )


def build_head(config: HeadConfig) -> nn.Module:
    """Builds a head with random weights; timm's own come with their network."""
    return HEADS[type(config)](config)
