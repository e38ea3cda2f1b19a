"""Classifiers without a decoder: timm's own logits, names and preparation; ASL's TResNet."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
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
    ("name", "kind"),
    [
        ("test_resnet", "gap"),
        ("test_efficientnet", "gap"),
        ("test_convnext", "timm"),  # a norm after the pooling
        ("test_vit", "gap"),  # class token
        ("test_vit2", "timm"),  # mean, then a norm instead of that of the tokens
        ("test_vit3", "timm"),  # attention pooling
        ("mobilenetv3_small_050", "timm"),  # two linear layers
        ("hgnetv2_b0", "timm"),
        pytest.param("mobilenetv4_conv_small", "timm", marks=pytest.mark.slow),
        pytest.param("caformer_s18", "timm", marks=pytest.mark.slow),  # an MLP
        pytest.param("mambaout_femto", "timm", marks=pytest.mark.slow),  # an MLP, channels last
        pytest.param("coat_lite_tiny", "gap", marks=pytest.mark.slow),  # an uncounted class token
        pytest.param("efficientformerv2_s0", "timm", marks=pytest.mark.slow),  # two classifiers
        pytest.param("deit_tiny_distilled_patch16_224", "timm", marks=pytest.mark.slow),
        pytest.param("volo_d1_224", "timm", marks=pytest.mark.slow),
        pytest.param("vgg11", "timm", marks=pytest.mark.slow),
    ],
)
def test_classifier_of_timm_gives_timms_logits(name: str, kind: str, tmp_path: Path) -> None:
    model, path = make_classifier(name), tmp_path / "model.ckpt"
    state = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, path)
    network = load_checkpoint(path, backbone=name)
    assert isinstance(network, Network)
    assert network.config.head.kind == kind
    spec = network.config.input
    images = torch.rand(2, 3, spec.height, spec.width)
    assert_gives(network, images, model(images))
    stored = [*network.backbone.state_dict(), *network.head.state_dict()]
    assert len(stored) == len(state)  # none twice
    write_checkpoint(tmp_path / "own.safetensors", network, (), {})
    assert_gives(tmp_path / "own.safetensors", images, model(images))


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
