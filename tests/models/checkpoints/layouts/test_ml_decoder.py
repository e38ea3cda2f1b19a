"""ML-Decoder as forks, ML-Danbooru and CheXFusion store it; what changes a score is refused."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from models.backbones import tresnet
from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import load_checkpoint
from models.checkpoints.description import Hints
from tests.models import shake
from tests.models.checkpoints import assert_gives, assert_refused, read_config, save
from tests.models.checkpoints.test_timm_layouts import State, compute, make_head, make_module

LAYER = "decoder.layers.0."
CROSS, OWN = f"{LAYER}multihead_attn.", f"{LAYER}self_attn."


def split_attention(state: State, prefix: str = CROSS) -> State:
    """Names an attention's tensors as xFormers does."""
    split = {key: tensor for key, tensor in state.items() if not key.startswith(prefix)}
    for leaf in ("weight", "bias"):
        thirds = state[f"{prefix}in_proj_{leaf}"].chunk(3)
        for part, third in zip("qkv", thirds, strict=True):
            split[f"{prefix}in_proj_container.{part}_proj.{leaf}"] = third.clone()
        split[f"{prefix}proj.{leaf}"] = state[f"{prefix}out_proj.{leaf}"]
    return split


def idle_attention(*, bias: bool = True) -> State:
    attention = nn.MultiheadAttention(64, 4, bias=bias)
    return {f"{OWN}{key}": tensor for key, tensor in attention.state_dict().items()}


def test_attention_of_xformers_and_32_groups_are_read(tmp_path: Path) -> None:
    head, features = shake(make_head(81, 32), 0.1), torch.rand(2, 96, 3, 4)
    expected = compute(head, features)
    assert_gives(save(split_attention(head.state_dict()), tmp_path), features, expected)


@pytest.mark.parametrize(
    ("remove", "add", "reason"),
    [
        ("in_proj_container.q_proj.bias", None, r"lacks .*in_proj_container\.q_proj\.bias"),
        (None, "bias_k", "has .*bias_k, which is not supported"),
    ],
)
def test_attention_with_other_tensors_is_refused(
    remove: str | None, add: str | None, reason: str, tmp_path: Path
) -> None:
    state = split_attention(make_head().state_dict())
    state.pop(f"{CROSS}{remove}", None)
    if add is not None:
        state[f"{CROSS}{add}"] = torch.ones(1, 1, 64)
    assert_refused(save(state, tmp_path), reason)


def test_second_layer_is_refused_by_its_name(tmp_path: Path) -> None:
    state = make_head().state_dict() | {"decoder.layers.1.norm1.bias": torch.ones(64)}
    assert_refused(save(state, tmp_path), r"Unexpected.*decoder\.layers\.1\.norm1")


def test_self_attention_that_was_never_trained_is_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head, features = shake(make_head(), 0.1), torch.rand(2, 96, 3, 4)
    caplog.set_level("INFO", "models")
    path = save(head.state_dict() | idle_attention(), tmp_path)
    assert_gives(path, features, compute(head, features))
    assert f"left out {OWN}in_proj_bias and 3 more: an attention that was never" in caplog.text


@pytest.mark.parametrize("leaf", ["in_proj_bias", "out_proj.bias", None])
def test_self_attention_of_which_it_is_not_known_whether_it_was_used_is_refused(
    leaf: str | None, tmp_path: Path
) -> None:
    other = idle_attention(bias=leaf is not None)
    if leaf is not None:
        other[f"{OWN}{leaf}"] += 1
    path = save(make_head().state_dict() | other, tmp_path)
    assert_refused(path, "do not show whether it was used")


@pytest.mark.parametrize(
    ("prefix", "key", "reason"),
    [
        ("", "transformer_encoder.layers.0.linear1.weight", r"has transformer_encoder\.layers"),
        ("net.", "conv2d.weight", r"has conv2d\.weight next to a backbone and a head"),
        ("", "ml_decoder_head.norm.weight", r"has ml_decoder_head\.norm\.weight next to"),
    ],
)
def test_layers_between_backbone_and_head_are_refused_by_name(
    prefix: str, key: str, reason: str, tmp_path: Path
) -> None:
    state = make_module("test_resnet").state_dict()
    state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    assert_refused(save(state | {key: torch.ones(3)}, tmp_path), reason, backbone="test_resnet")


def test_layer_before_the_head_in_the_place_of_a_classifier_is_refused(tmp_path: Path) -> None:
    state = make_module("test_resnet", num_classes=0).state_dict()
    state = {
        key.replace("ml_decoder_head.", "fc.1.").replace("backbone.", ""): tensor
        for key, tensor in state.items()
    }
    load_checkpoint(save(state, tmp_path), backbone="test_resnet")
    path = save(state | {"fc.0.weight": torch.ones(3)}, tmp_path)
    assert_refused(path, r"has fc\.0\.weight next to", backbone="resnet18")


def test_losses_metrics_and_the_backbones_classifier_are_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, images = make_module("test_resnet", num_classes=9), torch.rand(1, 3, 64, 64)
    expected = compute(module.ml_decoder_head, module.backbone.forward_features(images))
    training = ("criterion.pos_weight", "train_acc.tp", "pos_weight", "val_f1_metric.count")
    state = module.state_dict() | {key: torch.ones(5) for key in training}
    caplog.set_level("INFO", "models")
    assert_gives(save(state, tmp_path), images, expected, backbone="test_resnet")
    assert "left out criterion.pos_weight and 3 more: a loss or a metric" in caplog.text
    assert "left out fc.bias and 1 more: the backbone's own classifier" in caplog.text


# Our names of TResNet-D's tensors -> the authors'; a convolution before a blur is one level deeper.
_AUTHORS = (
    (r"(layer[234]\.0\.conv2)\.", r"\1.0."),
    (r"(conv\d(?:\.0)?)\.bn\.act\.", r"\1.2.act."),
    (r"act\.conv\.", "depthwise_conv_bn.0."),
    (r"act\.bn\.", "depthwise_conv_bn.1."),
    (r"(layer\d\.\d+)\.(depthwise)", r"\1.relu.\2"),
    (r"((?:conv\d(?:\.0)?|downsample\.\d))\.conv\.", r"\1.0."),
    (r"((?:conv\d(?:\.0)?|downsample\.\d))\.bn\.", r"\1.1."),
)


def test_tresnet_d_is_read_with_negative_gains_and_asks_for_its_image_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tresnet._LAYERS, tresnet.TRESNET_D, [1, 1, 2, 1])
    torch.manual_seed(0)
    backbone = shake(Backbone(tresnet.TRESNET_D), 0.3).eval()
    head, images = make_head(9, 4, 2048), torch.rand(1, 3, 64, 64)
    state = {f"head.{key}": tensor for key, tensor in head.state_dict().items()}
    for key, tensor in backbone.body.state_dict().items():
        for ours, theirs in _AUTHORS:
            key = re.sub(ours, theirs, key)
        state[key] = tensor
    funnels = ("conv1.2", "layer1.0.conv1.2", "layer2.0.conv2.0.2", "layer4.0.relu")
    assert all(f"body.{name}.depthwise_conv_bn.0.weight" in state for name in funnels)
    assert "body.layer1.0.downsample.0.0.weight" in state
    assert any((tensor < 0).any() for key, tensor in state.items() if key.endswith("1.1.weight"))
    path = save(state, tmp_path)
    assert_refused(path, "TResNet-D and has no image size: give --image-size")
    with torch.inference_mode():
        expected = compute(head, backbone.body.forward_features(images))
    assert_gives(path, images, expected, image_size=64, plain_pixels=True)
    spec = read_config(path, Hints(image_size=64)).input
    assert (spec.mean, spec.std, spec.interpolation) == ((0, 0, 0), (1, 1, 1), "bilinear")


def test_funnel_is_the_larger_of_a_value_and_its_normalised_neighbourhood() -> None:
    funnel, x = shake(tresnet.FReLU(2), 0.3).eval(), torch.randn(1, 2, 3, 3)
    near = nn.functional.conv2d(x, funnel.conv.weight, padding=1, groups=2)
    bn = funnel.bn
    normed = near / (1 + bn.eps) ** 0.5 * bn.weight[:, None, None] + bn.bias[:, None, None]
    torch.testing.assert_close(funnel(x), torch.maximum(x, normed))
