"""A recipe's network, before any training, and what computes it.

In: a `Recipe`. Out: a `Network`, its head fresh; an `Accelerator`. Next: `start.py`, `loop.py`.
"""

from __future__ import annotations

import math
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from models.backbones.backbone import Backbone, input_config
from models.checkpoints.pretrained import load_pretrained
from models.config import (
    GapConfig,
    HeadConfig,
    MLDecoderConfig,
    NetworkConfig,
    Query2LabelConfig,
    TransformerDecoderConfig,
    ZeroShotMLDecoderConfig,
)
from models.data import DataError, LabelledFolder
from models.network import Network
from models.train.recipe import Recipe, RecipeError


def make_accelerator(recipe: Recipe, device: str) -> Accelerator:
    """Chooses where and how to compute.

    Args:
        recipe: precision and accumulation.
        device: `cpu`, or `auto` for what `accelerate` finds or was told.
    """
    # Many of timm's models keep layers of the classifier that was left out, which get no gradient.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(
        cpu=device == "cpu",
        mixed_precision=recipe.mixed_precision,
        gradient_accumulation_steps=recipe.accumulate,
        kwargs_handlers=[unused],
    )


def build_network(recipe: Recipe, data: LabelledFolder, pretrained: bool) -> Network:
    """Builds the recipe's network with a fresh head.

    Args:
        recipe: backbone, head and sizes.
        data: what it will be trained on: its labels, or their word vectors.
        pretrained: give the backbone its ImageNet weights.

    Raises:
        DataError: a zero-shot head, and no word vectors.
        PretrainedError: no pretrained weights could be had.
        BackboneError: timm knows no such backbone, or it does not take images of this size.
        RecipeError: Query2Label, whose positions are bound to one grid, and crops of another.
    """
    size = (recipe.image_size, recipe.image_size)
    backbone = Backbone(recipe.backbone, size)
    tokens = backbone.count_tokens(size)
    cropped = backbone.count_tokens((recipe.crop_size, recipe.crop_size))
    if recipe.head == "query2label" and cropped != tokens:
        raise RecipeError(
            f"recipe: train_size: crops have {cropped} tokens and photos {tokens}, but the "
            "positions of query2label are bound to one grid"
        )
    config = NetworkConfig(
        backbone=recipe.backbone,
        input=input_config(recipe.backbone, size),
        head=_head_config(recipe, data, backbone.width, tokens),
        activation="softmax" if recipe.single_label else "sigmoid",
    )
    network = Network(config)
    if pretrained:
        load_pretrained(network.backbone)
    return network


def _head_config(recipe: Recipe, data: LabelledFolder, width: int, tokens: int) -> HeadConfig:
    num_classes = len(data.label_names)
    if recipe.head == "gap":
        return GapConfig(num_classes=num_classes, encoder_width=width, dropout=recipe.dropout)
    shape: dict[str, Any] = {
        "encoder_width": width,
        "decoder_width": recipe.decoder_width,
        "num_heads": recipe.num_heads,
        "feedforward_width": recipe.feedforward_width,
        "dropout": recipe.dropout,
    }
    if recipe.head == "zero_shot_ml_decoder":
        if data.word_vectors is None:
            raise DataError(f"data set {data.name} has no word vectors for a zero-shot head")
        return ZeroShotMLDecoderConfig(
            embedding_width=data.word_vectors.embeddings.shape[1], **shape
        )
    shape["num_classes"] = num_classes
    if recipe.head == "transformer_decoder":
        return TransformerDecoderConfig(num_layers=recipe.decoder_layers, **shape)
    if recipe.head == "query2label":
        side = math.isqrt(tokens)
        return Query2LabelConfig(
            grid=(side, side),
            num_encoder_layers=recipe.encoder_layers,
            self_attention=(False,) * recipe.decoder_layers,
            **shape,
        )
    return MLDecoderConfig(num_groups=recipe.num_groups, **shape)
