"""Classifiers without a decoder: timm's own logits, names and preparation; ASL's TResNet."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from torch import nn

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import Hints
from models.checkpoints.layouts.state import rename
from models.config import GapConfig
from tests.goldens import read_golden
from tests.models import shake
from tests.models.checkpoints import assert_gives, assert_refused, read_config, save, write_own
from tests.models.heads.test_goldens import write_official


def make_classifier(name: str, classes: int = 7) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=classes)
    return shake(model, 0.1).eval()


@pytest.mark.parametrize(
    "name",
    [
        "test_resnet",
        "test_efficientnet",
        "test_convnext",  # a norm after the pooling
        "test_vit",  # class token
        "test_vit2",  # mean, then a norm instead of that of the tokens
        "test_vit3",  # attention pooling
        "mobilenetv3_small_050",  # two linear layers
        "hgnetv2_b0",
        pytest.param("mobilenetv4_conv_small", marks=pytest.mark.slow),
        pytest.param("caformer_s18", marks=pytest.mark.slow),  # an MLP
        pytest.param("mambaout_femto", marks=pytest.mark.slow),  # an MLP, channels last
        pytest.param("coat_lite_tiny", marks=pytest.mark.slow),  # an uncounted class token
        pytest.param("efficientformerv2_s0", marks=pytest.mark.slow),  # two classifiers
        pytest.param("deit_tiny_distilled_patch16_224", marks=pytest.mark.slow),
        pytest.param("volo_d1_224", marks=pytest.mark.slow),
        pytest.param("vgg11", marks=pytest.mark.slow),
    ],
)
def test_classifier_of_timm_gives_timms_logits(name: str, tmp_path: Path) -> None:
    model = make_classifier(name)
    state = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    network = load_checkpoint(save({"state_dict": state, "epoch": 3}, tmp_path), backbone=name)
    spec = network.config.input
    images = torch.rand(2, 3, spec.height, spec.width)
    assert_gives(network, images, model(images))
    stored = [*network.backbone.state_dict(), *network.head.state_dict()]
    assert len(stored) == len(state)  # none twice
    assert_gives(write_own(network, tmp_path), images, model(images))


def test_model_that_does_not_consist_of_features_and_head_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet = timm.models.resnet.ResNet
    monkeypatch.setattr(resnet, "forward", lambda m, x: 2 * m.forward_head(m.forward_features(x)))
    for name, reason in (
        ("crossvit_tiny_240", "gives no single map of features"),
        ("test_resnet", "is more than timm's forward_features and forward_head"),
    ):
        path = save(make_classifier(name).state_dict(), tmp_path)
        assert_refused(path, reason, backbone=name)


def test_pooling_that_version_1_0_stored_is_read() -> None:
    old = {"norm_epsilon": None, "hidden_width": None, "hidden_activation": "relu"}
    assert GapConfig.model_validate({"num_classes": 3, "encoder_width": 64, **old}).kind == "gap"
    with pytest.raises(ValidationError, match="pooling"):
        GapConfig(num_classes=3, encoder_width=64, pooling="first")


def test_model_without_pooling_is_refused(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=3, global_pool="", class_token=False)
    config = {"architecture": "test_vit", "model_args": {"global_pool": "", "class_token": False}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_refused(save(model.state_dict(), tmp_path), r"must give a logit a class; .* gives")


TINY = {
    "vit": ("test_vit", {"act_layer": "gelu_tanh", "class_token": False, "fc_norm": False,
        "global_pool": "avg", "img_size": 64}),
    "swinv2": ("swinv2_tiny_window8_256", {"act_layer": "gelu_tanh", "img_size": 64,
        "window_size": 4, "embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2]}),
    "convnext": ("convnext_atto", {"act_layer": "gelu_tanh", "depths": [1, 1, 1, 1]}),
    "eva02": ("eva02_tiny_patch14_224", {"img_size": [64, 64], "patch_size": 16, "depth": 1,
        "ref_feat_shape": [8, 8], "drop_path_rate": 0.1}),
    "siglip": ("vit_base_patch16_siglip_224", {"depth": 1, "embed_dim": 48, "num_heads": 3,
        "img_size": 64}),
}  # fmt: skip


def write_folder(folder: Path, model: nn.Module, name: str, arguments: dict[str, Any]) -> Path:
    """Writes what timm's `push_to_hf_hub` does."""
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    config = {
        "architecture": name,
        "model_args": {**arguments, "num_classes": 7, "in_chans": 3, "drop_rate": None},
        "pretrained_cfg": {"input_size": [3, 64, 64], "mean": [0.5] * 3, "std": [0.25] * 3},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", TINY)
def test_model_is_built_with_the_arguments_of_its_file(kind: str, tmp_path: Path) -> None:
    name, arguments = TINY[kind]
    torch.manual_seed(0)
    model = shake(timm.create_model(name, num_classes=7, **arguments), 0.1).eval()
    images = torch.rand(2, 3, 64, 64)
    network = load_checkpoint(write_folder(tmp_path, model, name, arguments), backbone=name)
    assert_gives(network, images, model(images))
    assert (network.config.input.height, network.config.input.std) == (64, (0.25,) * 3)
    assert_gives(write_own(network, tmp_path), images, model(images))


@pytest.mark.parametrize(
    ("arguments", "backbone", "reason"),
    [
        ({"patch_size": 8}, None, r"not those of test_vit for 64 x 64 pixels: size mismatch for"),
        ({"checkpoint_path": "/etc/passwd"}, None, "have checkpoint_path, which is no argument"),
        ({"block_fn": {"a": 1}}, None, "not text, numbers or lists of them: block_fn"),
        ({"in_chans": 1}, None, "takes 1 channels: must be 3"),
        ({}, "test_vit2", "the file has test_vit: leave out --backbone test_vit2"),
        ({}, "hf-hub:owner/name", "no model named 'hf-hub:owner/name'"),
    ],
)
def test_description_that_contradicts_the_file_is_refused(
    arguments: dict[str, Any], backbone: str | None, reason: str, tmp_path: Path
) -> None:
    model = timm.create_model("test_vit", num_classes=7, img_size=64)
    folder = write_folder(tmp_path, model, "test_vit", arguments)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"] |= arguments
    (folder / "config.json").write_text(json.dumps(config))
    assert_refused(folder, reason, backbone=backbone)


@pytest.mark.parametrize("old", [False, True])
def test_densenet_of_torchvision_is_read_and_its_interpolation_asked_for(
    old: bool, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"block_config": [1, 1, 1, 1], "growth_rate": 8}
    model = shake(timm.create_model("densenet121", num_classes=7, **arguments), 0.1).eval()
    path = write_folder(tmp_path, model, "densenet121", arguments)
    if old:  # as CheXNet's files
        names = ((r"(denselayer1\.)(norm|conv)(\d)", r"\1\2.\3"), ("classifier", "classifier.0"))
        state = {f"module.densenet121.{k}": v for k, v in rename(model.state_dict(), names).items()}
        torch.save({"state_dict": state}, tmp_path / "pytorch_model.bin")
    assert_refused(path, r"interpolation bilinear \(torchvision.* or bicubic")
    network, images = load_checkpoint(path, interpolation="bilinear"), torch.rand(2, 3, 64, 64)
    assert_gives(network, images, model(images))
    assert network.config.input.interpolation == "bilinear"


def test_imagenet_names_are_timms_and_none_is_repeated(tmp_path: Path) -> None:
    model = make_classifier("test_resnet", 1000)
    content = {"arch": "test_resnet", "state_dict": model.state_dict()}
    names = read_checkpoint(save(content, tmp_path)).label_names
    assert len(set(names)) == 1000
    assert names[:2] == ("tench", "goldfish")
    assert {"crane (n02012849)", "crane (n03126707)"} <= set(names)
    path = save(make_classifier("test_resnet").state_dict(), tmp_path)
    assert read_checkpoint(path, Hints("test_resnet")).label_names is None


def test_crop_is_timms_evaluation(tmp_path: Path) -> None:
    path = save(make_classifier("resnet18").state_dict(), tmp_path)
    hints = (Hints("resnet18"), Hints("resnet18", crop=True))
    whole, cropped = (read_config(path, each).input for each in hints)
    assert (whole.resize_mode, whole.crop_pct) == ("squash", 1.0)
    assert (cropped.resize_mode, cropped.crop_pct) == ("crop", 0.95)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_tresnet_of_asl_is_pooled_and_multiplied(bottleneck: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    recorded = read_golden("tresnet_m_224_model_b2")  # a decoder on the same backbone
    whole = load_checkpoint(write_official(recorded, tmp_path / "whole.pth"), image_size=64)
    layers = [nn.Linear(2048, 200), nn.Linear(200, 5)] if bottleneck else [nn.Linear(2048, 5)]
    names = ["head.fc.embedding_generator.0", "head.fc.FC"] if bottleneck else ["head.fc"]
    state = {k: torch.from_numpy(v) for k, v in recorded.state.items() if k.startswith("body.")}
    for name, layer in zip(names, layers, strict=True):
        state |= {f"{name}.{leaf}": tensor for leaf, tensor in layer.state_dict().items()}
    content = {"model": state, "num_classes": 5, "idx_to_class": dict(enumerate("abcde"))}
    checkpoint = read_checkpoint(save(content, tmp_path), Hints(image_size=64))
    assert isinstance(checkpoint.take_network().config.head, GapConfig)
    assert checkpoint.label_names == tuple("abcde")
    images = torch.rand(2, 3, 64, 64)
    tokens = whole.get_submodule("backbone")(images)
    assert_gives(checkpoint.network, images, nn.Sequential(*layers)(tokens.mean(dim=1)))
    content["model"] |= {"neck.weight": torch.ones(3)}
    assert_refused(save(content, tmp_path), r"the file has neck\.weight next to", image_size=64)
