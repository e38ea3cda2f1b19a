"""A recipe's network, before any training.

In: a `Recipe`. Out: a `Network` with a pretrained backbone and a fresh head. Next: `loop.py`.
"""

from __future__ import annotations

from models.backbone import Backbone, input_config
from models.config import GapConfig, HeadConfig, MLDecoderConfig, NetworkConfig
from models.network import Network
from models.pretrained import load_pretrained
from models.train.recipe import Recipe


def build_network(recipe: Recipe, num_classes: int) -> Network:
    """Builds the recipe's network: a pretrained backbone, a fresh head.

    Args:
        recipe: backbone, head and sizes.
        num_classes: N.

    Raises:
        PretrainedError: no pretrained weights could be had.
        BackboneError: timm knows no such backbone.
    """
    size = (recipe.image_size, recipe.image_size)
    width = Backbone(recipe.backbone, size).width
    config = NetworkConfig(
        backbone=recipe.backbone,
        input=input_config(recipe.backbone, size),
        head=_head_config(recipe, num_classes, width),
    )
    network = Network(config)
    if recipe.pretrained:
        load_pretrained(network.backbone)
    return network


def _head_config(recipe: Recipe, num_classes: int, encoder_width: int) -> HeadConfig:
    if recipe.head == "gap":
        return GapConfig(
            num_classes=num_classes, encoder_width=encoder_width, dropout=recipe.dropout
        )
    return MLDecoderConfig(
        num_classes=num_classes,
        encoder_width=encoder_width,
        num_groups=recipe.num_groups,
        decoder_width=recipe.decoder_width,
        num_heads=recipe.num_heads,
        feedforward_width=recipe.feedforward_width,
        dropout=recipe.dropout,
    )
