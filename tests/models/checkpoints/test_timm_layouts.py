"""Checkpoints of timm's own `add_ml_decoder_head` and of its training script."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.layers.ml_decoder import MLDecoder, add_ml_decoder_head
from torch import Tensor, nn

from models.backbones.backbone import input_config
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import Hints
from tests.goldens import read_golden
from tests.models import shake
from tests.models.checkpoints import assert_gives, assert_refused, read_config, save, write_own
from tests.models.heads.test_goldens import write_official

State = dict[str, Tensor]


@torch.inference_mode()
def compute(head: Any, features: Tensor) -> Tensor:
    """Returns the logits of timm's head; its own forward pass needs a torch older than 2.1."""
    tokens = features if features.dim() == 3 else features.flatten(2).mT
    tokens = head.embed_standart(tokens).relu()
    queries = head.query_embed.weight.unsqueeze(1).expand(-1, len(tokens), -1)
    decoded = head.decoder.layers[0](queries, tokens.transpose(0, 1)).transpose(0, 1)
    logits = (decoded.transpose(0, 1) @ head.duplicate_pooling).transpose(0, 1).flatten(1)
    return logits[:, : head.num_classes] + head.duplicate_pooling_bias


def make_head(classes: int = 5, groups: int = -1, width: int = 96) -> Any:
    torch.manual_seed(0)
    return MLDecoder(classes, groups, 64, width).eval()


def make_model(name: str) -> Any:
    torch.manual_seed(0)
    return add_ml_decoder_head(timm.create_model(name, num_classes=5)).eval()


def make_module(name: str, width: int | None = None, **options: Any) -> Any:
    """A module as in the README of ML-Decoder."""
    module = nn.Module()
    torch.manual_seed(0)
    module.backbone = timm.create_model(name, **options)
    module.ml_decoder_head = make_head(width=width or module.backbone.num_features)
    return shake(module, 0.1).eval()


@pytest.mark.parametrize("names", [("self_attn",), ("self_attn", "multihead_attn")])
def test_attention_renamed_for_newer_torch_is_the_attention_to_the_image(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    head, features = make_head(), torch.rand(2, 96, 3, 4)
    state = {
        key.replace("multihead_attn", name): tensor
        for key, tensor in head.state_dict().items()
        for name in names
    }
    assert_gives(save(state, tmp_path), features, compute(head, features))


@pytest.mark.parametrize(("classes", "groups"), [(7, -1), (9, 6)])  # 9 in 6 groups use 5
def test_self_attention_of_torchs_own_layer_is_folded_into_the_queries(
    classes: int, groups: int, tmp_path: Path
) -> None:
    head, features = make_head(classes, groups), torch.rand(2, 96, 3, 4)
    head.decoder.layers[0] = nn.TransformerDecoderLayer(64, 8, 2048)
    shake(head, 0.1).eval()
    assert_gives(save(head.state_dict(), tmp_path), features, compute(head, features))


def test_self_attention_between_open_labels_is_refused(tmp_path: Path) -> None:
    golden, layer = read_golden("zsl_81_768_7x7_b3"), "decoder.layers.0."
    for leaf in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"):
        golden.state[f"{layer}self_attn.{leaf}"] = golden.state[f"{layer}multihead_attn.{leaf}"] + 1
    path = write_official(golden, tmp_path / "head.pth")
    assert_refused(path, "would depend on the other labels")


@pytest.mark.parametrize(
    ("name", "head_name"), [("test_resnet", "fc"), ("test_efficientnet", "classifier")]
)
def test_file_of_timms_training_script_needs_no_hints(
    name: str, head_name: str, tmp_path: Path
) -> None:
    model, images = make_model(name), torch.rand(1, 3, 64, 64)
    averaged = rename(model.state_dict(), "module.")
    content = {
        "epoch": 3,
        "arch": name,
        # Last weights, which must not be served.
        "state_dict": {key: torch.zeros_like(tensor) for key, tensor in averaged.items()},
        "state_dict_ema": averaged,
        "args": argparse.Namespace(model=name, lr=1e-3),
        "metric": np.float64(76.5),
    }
    expected = compute(getattr(model, head_name), model.forward_features(images))
    assert_gives(save(content, tmp_path), images, expected)


def test_preparation_is_read_from_timms_training_script(tmp_path: Path) -> None:
    given = {"img_size": 96, "input_size": None, "mean": [0.5, 0.4, 0.3], "std": None}
    content = {
        "arch": "test_resnet",
        "state_dict": make_model("test_resnet").state_dict(),
        "args": argparse.Namespace(model="test_resnet", interpolation="bilinear", **given),
    }
    path = save(content, tmp_path)
    spec = read_config(path).input
    assert (spec.height, spec.width) == (96, 96)
    assert (spec.mean, spec.interpolation) == ((0.5, 0.4, 0.3), "bilinear")
    assert spec.std == input_config("test_resnet").std
    assert read_config(path, Hints(image_size=128)).input.height == 128
    # Another script's arguments may mean something else.
    save({**content, "args": argparse.Namespace(mean="grey")}, tmp_path)
    assert read_config(path).input == input_config("test_resnet")


@torch.inference_mode()
def test_models_arguments_are_read_from_timms_training_script(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=5, global_pool="avg", act_layer="relu").eval()
    args = argparse.Namespace(model="test_vit", gp="avg", model_kwargs={"act_layer": "relu"})
    content = {"arch": "test_vit", "state_dict": model.state_dict(), "args": args}
    images = torch.rand(2, 3, 160, 160)
    assert_gives(save(content, tmp_path), images, model(images))
    args.bn_eps = 1e-3
    assert_refused(save(content, tmp_path), "have bn_eps, which is no argument of test_vit")


@pytest.mark.parametrize(
    ("arch", "size"),
    [("tresnet_m", 224), ("tresnet_m.miil_in1k_448", 448), ("our_tresnet", 448), (None, 448)],
)
def test_tresnet_has_timms_size_when_timm_trained_it_else_the_authors(
    arch: str | None, size: int, tresnet: State, tmp_path: Path
) -> None:
    photos = dict.fromkeys(("img_size", "input_size", "mean", "std"))
    args = argparse.Namespace(model=arch, interpolation="", **photos)
    spec = read_config(save({"arch": arch, "args": args, "state_dict": tresnet}, tmp_path)).input
    assert (spec.height, spec.width) == (size, size)


@pytest.fixture(scope="module")
def tresnet() -> State:
    return make_model("tresnet_m").state_dict()


@pytest.mark.parametrize("name", ["test_vit", "test_vit3"])  # class token, and registers too
def test_prefix_tokens_of_a_vit_are_asked_for_and_heeded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model(name, num_classes=5, global_pool="").eval()
    model.head = make_head(width=model.num_features)
    path = save(model.state_dict(), tmp_path)
    assert_refused(path, "give --prefix-tokens keep", backbone=name)
    images, first = torch.rand(2, 3, 160, 160), model.num_prefix_tokens
    tokens = model.forward_features(images)
    dropped = compute(model.head, tokens[:, first:])
    assert_gives(path, images, dropped, backbone=name, prefix_tokens="drop")
    kept = load_checkpoint(path, backbone=name, prefix_tokens="keep")
    assert_gives(kept, images, compute(model.head, tokens))
    own_file = write_own(kept, tmp_path)
    assert read_config(own_file).prefix_tokens == "keep"
    assert_refused(own_file, "was made with --prefix-tokens keep", prefix_tokens="drop")


def rename(state: State, prefix: str) -> State:
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"state_dict": rename(s, "model._orig_mod."), "callbacks": {}, "epoch": 1},
        lambda s: {"state_dict": rename(s, "net.") | {"loss.weight": torch.ones(5)}},
        lambda s: {key: t.bfloat16() if t.is_floating_point() else t for key, t in s.items()},
    ],
    ids=["lightning", "loss", "bfloat16"],
)
def test_network_is_taken_out_of_the_module_that_trained_it_in_any_precision(
    wrap: Callable[[State], object], tmp_path: Path
) -> None:
    model, images = make_model("test_resnet"), torch.rand(1, 3, 64, 64)
    path = save(wrap(model.state_dict()), tmp_path)
    with torch.inference_mode():
        logits = load_checkpoint(path, backbone="test_resnet")(images)
    wanted = compute(model.fc, model.forward_features(images))
    torch.testing.assert_close(logits, wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("change", "backbone", "reason"),
    [
        (lambda s: s, None, r"--backbone .*resnet18, whose tensors fit"),
        (lambda s: s, "resnet5000", "no model named"),
        (lambda s: s, "resnet34", r"not those of resnet34 for .*Missing.*layer1\.2\.bn1"),
        (lambda s: s | {"body.bn1.bias": torch.zeros(3)}, "resnet18",
         r"not those of resnet18 for .*Unexpected.*body\.bn1\.bias"),
        (lambda s: s | {"conv1.weight": torch.zeros(32, 3, 7, 7)}, "resnet18",
         r"size mismatch for conv1\.weight: .*\[32, 3, 7, 7\]"),
        (lambda s: rename(s, "model.") | rename(s, "teacher."), "resnet18", "several networks"),
        (lambda s: {k: v for k, v in s.items() if "bn" not in k and "downsample.1" not in k}
         | {"conv1.bias": torch.zeros(64)}, "resnet18", "are fused"),  # by fuse_bn_recursively
        (lambda _: make_module("test_resnet", 99, num_classes=0).state_dict(), "test_resnet",
         "test_resnet gives tokens of width 96, the file's head takes 99"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_the_backbones_are_refused(
    change: Callable[[State], State], backbone: str | None, reason: str, tmp_path: Path
) -> None:
    path = save(change(make_model("resnet18").state_dict()), tmp_path)
    assert_refused(path, reason, backbone=backbone)


@pytest.mark.parametrize(
    "name",
    ["convnext_atto", "edgenext_xx_small", "test_convnext", "tiny_vit_5m_224",
     "hiera_tiny_224", "hgnetv2_b0", "efficientformerv2_s0",
     pytest.param("davit_tiny", marks=pytest.mark.slow)],
)  # fmt: skip
def test_authors_head_replaces_all_of_a_models_own(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model(name, num_classes=9).eval()
    del model.head
    model.head = make_head(width=model.num_features)
    images = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        expected = compute(model.head, model.forward_features(images))
    path = save(model.state_dict(), tmp_path)
    assert_gives(path, images, expected, backbone=name, image_size=224)


def test_head_after_the_norm_of_a_models_own_head_is_asked_for_and_heeded(tmp_path: Path) -> None:
    module = make_module("test_convnext", num_classes=0, global_pool="")
    path, images = save(module.state_dict(), tmp_path), torch.rand(2, 3, 160, 160)
    assert_refused(path, "give --features forward or --features", backbone="test_convnext")
    whole = compute(module.ml_decoder_head, module.backbone(images))
    features = compute(module.ml_decoder_head, module.backbone.forward_features(images))
    assert_gives(path, images, features, backbone="test_convnext", features="forward_features")
    network = load_checkpoint(path, backbone="test_convnext", features="forward")
    own_file = write_own(network, tmp_path)
    assert_gives(own_file, images, whole)
    assert_refused(own_file, r"was made with --features forward$", features="forward_features")


@pytest.mark.parametrize(
    ("name", "options", "width", "method"),
    [
        ("resnet18", {"num_classes": 9}, None, "forward_features"),
        ("densenet121", {"num_classes": 9}, None, "forward_features"),
        ("test_convnext", {"num_classes": 9}, None, "forward_features"),  # `forward` gives 9 scores
        ("mobilenetv3_small_050", {"num_classes": 0, "global_pool": ""}, 1024, "forward"),
        ("mobilenetv3_small_050", {"num_classes": 0, "global_pool": ""}, 288, "forward_features"),
        ("mobilenetv3_small_050", {"num_classes": 0}, 288, "forward_features"),
    ],
)
def test_module_with_backbone_and_head_is_read_and_shows_which_features_the_head_takes(
    tmp_path: Path, name: str, options: dict[str, Any], width: int | None, method: str
) -> None:
    module, images = make_module(name, width, **options), torch.rand(1, 3, 160, 160)
    expected = compute(module.ml_decoder_head, getattr(module.backbone, method)(images))
    path, hints = save(module.state_dict(), tmp_path), {"backbone": name}
    if name == "densenet121":
        assert_refused(path, r"give --interpolation bilinear .* or bicubic", **hints)
        hints["interpolation"] = "bicubic"
    assert_gives(path, images, expected, **hints)
    assert_refused(path, "7 heads", num_heads=7, **hints)


def test_tokens_of_a_model_whose_norm_is_after_its_pooling_have_none(tmp_path: Path) -> None:
    module, images = make_module("test_vit2", num_classes=0), torch.rand(2, 3, 160, 160)
    assert module.backbone.fc_norm.weight.numel() > 1
    path, hints = save(module.state_dict(), tmp_path), Hints("test_vit2", prefix_tokens="keep")
    expected = compute(module.ml_decoder_head, module.backbone.forward_features(images))
    network = read_checkpoint(path, hints).network
    for checkpoint in (network, write_own(network, tmp_path)):
        assert_gives(checkpoint, images, expected)


def test_backbone_is_built_with_the_arguments_of_its_file(tmp_path: Path) -> None:
    arguments = {"class_token": False, "act_layer": "gelu_tanh", "global_pool": "avg"}
    module = make_module("test_vit", num_classes=0, fc_norm=False, **arguments)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    config = {"architecture": "test_vit", "model_args": {**arguments, "fc_norm": False}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    network, images = load_checkpoint(tmp_path), torch.rand(2, 3, 160, 160)
    expected = compute(module.ml_decoder_head, module.backbone.forward_features(images))
    for checkpoint in (network, write_own(network, tmp_path)):
        assert_gives(checkpoint, images, expected)


def test_head_in_the_place_of_a_classifier_is_after_its_norm(tmp_path: Path) -> None:
    model = make_module("test_convnext", num_classes=0, global_pool="").backbone
    model.head.fc = make_head(width=model.num_features)
    path = save({"model": rename(model.state_dict(), "net.")}, tmp_path)
    images = torch.rand(1, 3, 160, 160)
    expected = compute(model.head.fc, model.head.norm(model.forward_features(images)))
    assert_gives(path, images, expected, backbone="test_convnext")
