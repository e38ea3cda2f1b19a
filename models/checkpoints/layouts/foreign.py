"""Layouts that are recognised, and not read: what they are, and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Iterable

from models.checkpoints.description import CheckpointError

_IN_TIMM = "a classifier must be in the layout of timm, as timm.create_model builds it"

# Every expression is found in a key -> what the file is, and what to do.
_FOREIGN: dict[tuple[str, ...], tuple[str, str]] = {
    (r"\bembeddings\.patch_embeddings\.projection\.",): (
        "a ViT, Swin or DINOv2 of transformers (such as ViTForImageClassification)",
        _IN_TIMM,
    ),
    (r"\bencoder\.stages\.\d+\.layers\.\d+\.(dwconv|layer\.\d+\.convolution)\.",): (
        "a ConvNeXt or ResNet of transformers (such as ConvNextForImageClassification)",
        _IN_TIMM,
    ),
    (r"\bvision_model\.encoder\.layers\.\d+\.self_attn\.",): (
        "a CLIP or SigLIP of transformers",
        "give the folder of a model with both towers",
    ),
    (
        r"\bbackbone\.layers\.\d+\.(ln1|ffn)\.|\bbackbone\.stages\.\d+\.\d+\.depthwise_conv\."
        r"|\bbackbone\.stages\.\d+\.blocks\.\d+\.attn\.w_msa\.",
    ): (
        "a ViT, ConvNeXt or Swin of mmpretrain",
        f"{_IN_TIMM}; of mmpretrain, ResNets are",
    ),
    (
        r"(^|\.)encoder\.layers\.encoder_layer_\d+\.|(^|\.)features\.\d+\.(\d+\.(block|attn)|(block|conv)\.\d+)\.",
    ): (
        "a ViT, Swin, ConvNeXt, EfficientNet or MobileNet of torchvision",
        f"{_IN_TIMM}; of torchvision, ResNets and DenseNets are",
    ),
    (r"(^|\.)_blocks\.\d+\._",): ("an EfficientNet of efficientnet_pytorch", _IN_TIMM),
    (r"[/.](kernel|moving_mean)(:\d+)?$",): ("a network of Keras, TensorFlow or JAX", _IN_TIMM),
    (r"(^|\.)blocks\.\d+\.qkv_proj\.", r"(^|\.)blocks\.\d+\.skip_init1\.skip$"): (
        "JoyTag, a ViT of its own",
        "give a tagger in the layout of timm, such as WD v3",
    ),
    (r"(^|\.)feats_trans\.\d+\.", r"(^|\.)cls_head\."): (
        "ML-Danbooru's CAFormer, with a decoder of its own over several stages",
        "give ML-Danbooru's TResNet-D, or a CAFormer in the layout of timm, such as animetimm's",
    ),
    (r"(^|\.)attn_pool\.latent$", r"(^|\.)head\.linear\.weight$"): (
        "JTP PILOT2, whose head multiplies two sigmoids of a tag",
        "give the first JTP PILOT",
    ),
}


def refuse_foreign(keys: Iterable[str]) -> None:
    """Raises CheckpointError if the names of a file's tensors are of a layout that is not read."""
    names = "\n".join(keys)
    for patterns, (what, remedy) in _FOREIGN.items():
        if all(re.search(pattern, names, re.MULTILINE) for pattern in patterns):
            raise CheckpointError(f"the file has {what}, which cannot be read: {remedy}")
