"""Layouts of other frameworks are refused by name, and none of timm's is taken for one."""

import pytest
import timm
import torch

from models.checkpoints.checkpoint import load_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.layouts.foreign import refuse_foreign


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["vit.embeddings.patch_embeddings.projection.weight"], "ViT, Swin or DINOv2 of transform"),
        (["model.convnext.encoder.stages.0.layers.1.dwconv.weight"], "ConvNeXt or ResNet of trans"),
        (["vision_model.encoder.layers.0.self_attn.k_proj.weight"], "SigLIP of transformers"),
        (["backbone.layers.0.ln1.weight"], "mmpretrain"),
        (["backbone.stages.0.blocks.0.attn.w_msa.qkv.weight"], "mmpretrain"),
        (["encoder.layers.encoder_layer_0.ln_1.weight"], "torchvision"),
        (["model.features.1.0.block.0.weight"], "torchvision"),
        (["features.2.conv.0.0.weight"], "torchvision"),
        (["_blocks.0._depthwise_conv.weight"], "efficientnet_pytorch"),
        (["dense_1/kernel:0", "conv/kernel:0"], "Keras, TensorFlow or JAX"),
        (["blocks.0.qkv_proj.weight", "blocks.0.skip_init1.skip"], "JoyTag, .* WD v3"),
        (["feats_trans.0.0.weight", "cls_head.weight"], "ML-Danbooru.s CAFormer, .* TResNet-D"),
        (["attn_pool.latent", "head.linear.weight"], "JTP PILOT2, .* first JTP PILOT"),
    ],
)
@pytest.mark.parametrize("backbone", [None, "test_vit"])
def test_layout_of_another_framework_is_refused_by_name(
    keys: list[str], what: str, backbone: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("foreign") / "model.pth"
    torch.save({key: torch.zeros(2, 2) for key in keys}, path)
    with pytest.raises(CheckpointError, match=f"^the file has .*{what}") as refused:
        load_checkpoint(path, backbone=backbone)
    assert "--backbone" not in str(refused.value)


@pytest.mark.parametrize("name", ["rexnet_100", "inception_v4", "mobilenetv2_100", "vgg11"])
def test_model_of_timm_is_no_foreign_one(name: str) -> None:
    with torch.device("meta"):
        refuse_foreign(timm.create_model(name).state_dict())
