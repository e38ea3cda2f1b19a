"""Small heads in eval mode, with lively weights."""

from typing import Any

import torch
from torch.nn import functional

from models.config import MLDecoderConfig, ZeroShotMLDecoderConfig
from models.heads.ml_decoder import MLDecoder
from models.heads.zero_shot import ZeroShotMLDecoder
from tests.models import shake

WIDTHS: dict[str, Any] = {
    "encoder_width": 12, "decoder_width": 16, "num_heads": 4, "feedforward_width": 24,
}  # fmt: skip


def make_trained(num_classes: int = 7, num_groups: int | None = 3) -> MLDecoder:
    torch.manual_seed(0)
    config = MLDecoderConfig(num_classes=num_classes, num_groups=num_groups, **WIDTHS)
    return shake(MLDecoder(config)).eval()


def make_open(num_prototypes: int = 0) -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    config = ZeroShotMLDecoderConfig(embedding_width=5, num_prototypes=num_prototypes, **WIDTHS)
    head = shake(ZeroShotMLDecoder(config)).eval()
    if head.votes is not None:
        head.votes.names.copy_(functional.normalize(torch.randn(num_prototypes, 5), dim=1))
    return head
