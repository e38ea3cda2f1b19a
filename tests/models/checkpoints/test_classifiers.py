"""Classifiers without a decoder: timm's own logits, names and preparation; ASL's TResNet."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.config import GapConfig
from models.network import Network
from tests.goldens import read_golden
from tests.models import shake
from tests.models.checkpoints import assert_gives, read_config
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
        "mobilenetv3_small_050",  # two linear layers
        pytest.param("mobilenetv4_conv_small", marks=pytest.mark.slow),  # and a norm between them
        pytest.param("coat_lite_tiny", marks=pytest.mark.slow),  # an uncounted class token
        pytest.param("efficientformerv2_s0", marks=pytest.mark.slow),  # two classifiers
    ],
)
def test_classifier_of_timm_gives_timms_logits(name: str, tmp_path: Path) -> None:
    model, path = make_classifier(name), tmp_path / "model.ckpt"
    state = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, path)
    network = load_checkpoint(path, backbone=name)
    assert isinstance(network, Network)
    spec = network.config.input
    images = torch.rand(2, 3, spec.height, spec.width)
    assert_gives(network, images, model(images))


@pytest.mark.parametrize(
    "name",
    [
        "hgnetv2_b0",
        "test_vit3",
        pytest.param("deit_tiny_distilled_patch16_224", marks=pytest.mark.slow),
        pytest.param("volo_d1_224", marks=pytest.mark.slow),
    ],
)
def test_classifier_with_more_than_pooling_is_refused(name: str, tmp_path: Path) -> None:
    torch.save(make_classifier(name).state_dict(), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"classifies by more than|there is a attn_pool"):
        load_checkpoint(tmp_path / "model.pth", backbone=name)


def test_backbone_without_a_classifier_is_refused(tmp_path: Path) -> None:
    state, path = make_classifier("test_resnet").state_dict(), tmp_path / "model.pth"
    torch.save({key: tensor for key, tensor in state.items() if "fc." not in key}, path)
    with pytest.raises(CheckpointError, match=r"test_resnet without a classifier, .* no fc\.\*"):
        load_checkpoint(path, backbone="test_resnet")


def test_imagenet_names_are_timms_and_none_is_repeated(tmp_path: Path) -> None:
    model = make_classifier("test_resnet", 1000)
    torch.save({"arch": "test_resnet", "state_dict": model.state_dict()}, tmp_path / "model.pth")
    names = read_checkpoint(tmp_path / "model.pth").label_names
    assert names is not None
    assert len(set(names)) == 1000
    assert names[:2] == ("tench", "goldfish")
    assert {"crane (n02012849)", "crane (n03126707)"} <= set(names)
    torch.save(make_classifier("test_resnet").state_dict(), tmp_path / "other.pth")
    assert read_checkpoint(tmp_path / "other.pth", Hints("test_resnet")).label_names is None


def test_crop_is_timms_evaluation(tmp_path: Path) -> None:
    torch.save(make_classifier("resnet18").state_dict(), tmp_path / "model.pth")
    whole, cropped = (
        read_config(tmp_path / "model.pth", Hints("resnet18", crop=crop)).input
        for crop in (False, True)
    )
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
    torch.save(content, tmp_path / "asl.pth")
    found = read_checkpoint(tmp_path / "asl.pth", Hints(image_size=64))
    assert found.config is not None
    assert isinstance(found.config.head, GapConfig)
    assert found.label_names == tuple("abcde")
    images = torch.rand(2, 3, 64, 64)
    tokens = whole.get_submodule("backbone")(images)
    assert_gives(found.network, images, nn.Sequential(*layers)(tokens.mean(dim=1)))
