"""Layouts of other frameworks are refused by name, and none of timm's is taken for one."""

from pathlib import Path

import pytest
import timm
import torch

from models.checkpoints.description import CheckpointError
from models.checkpoints.layouts.unsupported import refuse_unsupported
from tests.models.checkpoints import assert_refused, save


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["fc._packed_params.dtype"], "quantised weights"),
        (["fc.weight_scale"], "quantised weights"),
        (["base.a.lora_A.default.weight"], "adapters"),
        (["pixel_mean", "pixel_std"], "mean and std .* without them, and give --mean and --std"),
        (["backbone.pos_encoding.penc.inv_freq"], "adds positions to the tokens"),
        (["model.model.22.cv2.0.0.conv.weight"], "detector"),
        (["ultralytics.nn.tasks.DetectionModel"], "YOLO"),
        (["vision_model.embeddings.class_embedding"], "CLIP or SigLIP .* with both towers"),
        (["vit.embeddings.patch_embeddings.projection.weight"], "network of transformers"),
        (["model.convnext.encoder.stages.0.layers.1.dwconv.weight"], "transformers"),
        (["backbone.layers.0.ln1.weight"], "mmpretrain"),
        (["encoder.layers.encoder_layer_0.ln_1.weight"], "torchvision"),
        (["model.features.1.0.block.0.weight"], "torchvision"),
        (["_blocks.0._depthwise_conv.weight"], "efficientnet_pytorch"),
        (["dense_1/kernel:0", "conv/kernel:0"], "Keras or JAX"),
        (["blocks.0.qkv_proj.weight", "blocks.0.skip_init1.skip"], "JoyTag, .* WD v3"),
        (["feats_trans.0.0.weight", "cls_head.weight"], "ML-Danbooru.s CAFormer, .* TResNet-D"),
        (["attn_pool.latent", "head.linear.weight"], "JTP PILOT2, .* first JTP PILOT"),
    ],
)
def test_layout_that_is_not_read_is_refused_by_name(keys: list[str], what: str) -> None:
    with pytest.raises(CheckpointError, match=f"^the file has .*{what}"):
        refuse_unsupported(keys)


def test_unsupported_layout_is_refused_although_a_backbone_is_given(tmp_path: Path) -> None:
    path = save({"module._blocks.0._bn0.weight": torch.ones(3)}, tmp_path)
    assert_refused(path, "efficientnet_pytorch", backbone="efficientnet_b0")


@pytest.mark.parametrize("name", ["rexnet_100", "inception_v4", "mobilenetv2_100", "vgg11"])
def test_model_of_timm_is_supported(name: str) -> None:
    with torch.device("meta"):
        refuse_unsupported(timm.create_model(name).state_dict())
