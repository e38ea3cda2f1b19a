"""Classifiers that training scripts assembled: equal to their own module, or refused by name."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from models.checkpoints.checkpoint import load_checkpoint
from models.checkpoints.description import CheckpointError, Description, Hints
from models.checkpoints.layouts.state import rename
from models.checkpoints.layouts.translate import read_foreign
from tests.models import shake
from tests.models.checkpoints import assert_gives, save

IMAGES = torch.rand(2, 3, 64, 64)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def make(name: str, **parts: nn.Module) -> nn.Module:
    """A timm model without classifier, then other parts; `linear` stands for the last layer."""
    torch.manual_seed(0)
    body = timm.create_model(name, num_classes=0)
    layers = {"backbone": body, **parts, "fc": nn.Linear(body.num_features, 5)}
    module = nn.Sequential()
    for key, layer in layers.items():
        module.add_module(key, layer)
    return shake(module, 0.1).eval()


@pytest.mark.parametrize(
    ("name", "backbone", "fc"),
    [
        ("test_resnet", "backbone.", "head."),
        ("test_resnet", "model.model.", "model.head.fc."),
        ("test_resnet", "", "fc.1."),
        ("test_resnet", "features.0.", "linear."),
        ("test_vit", "0.", "1.head.0."),  # as PixAI's
        ("test_convnext", "encoder.", "classifier.0."),  # a norm after pooling is in the backbone
        ("test_efficientnet", "", "fc."),
    ],
)
def test_backbone_and_a_linear_layer_are_found_under_any_names(
    name: str, backbone: str, fc: str, tmp_path: Path
) -> None:
    module = make(name)
    state = rename(module.state_dict(), ((r"^backbone\.", backbone), (r"^fc\.", fc)))
    network = load_checkpoint(save({"state_dict": state}, tmp_path), backbone=name)
    images = torch.rand(1, 3, network.config.input.height, network.config.input.width)
    assert_gives(network, images, module(images))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_numbered_children_of_a_resnet_are_named(prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    children = timm.create_model("test_resnet", num_classes=5).children()
    module = shake(nn.Sequential(*children), 0.1).eval()
    path = save({f"{prefix}{k}": v for k, v in module.state_dict().items()}, tmp_path)
    network = load_checkpoint(path, backbone="test_resnet", image_size=64)
    assert_gives(network, IMAGES, module(IMAGES))


def test_assumed_pooling_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "models"):
        assert read(make("test_resnet").state_dict())
    assert "test_resnet under 'backbone.', its pooling taken as timm's (avg)" in caplog.text


def read(state: dict[str, Any], name: str | None = "test_resnet") -> object:
    return read_foreign(state, Hints(name), Description())


def linear(prefix: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    return {f"{prefix}.weight": torch.ones(outputs, inputs), f"{prefix}.bias": torch.ones(outputs)}


def without_head(state: dict[str, Any]) -> dict[str, Any]:
    return {key: tensor for key, tensor in state.items() if not key.startswith("fc.")}


BESIDES = "besides its backbone: only one linear layer with a bias"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s | linear("fc.3", 5, 9), f"fc.3.bias and fc.3.weight and fc.bias .*{BESIDES}"),
        (lambda s: without_head(s) | {"arc.weight": torch.ones(5, 96)}, f"arc.weight {BESIDES}"),
        (lambda s: s | {"neck.running_mean": torch.ones(96)}, f"neck.running_mean {BESIDES}"),
        (lambda s: without_head(s) | linear("1.8", 5, 192), "a mean and a maximum"),
        (lambda s: without_head(s) | linear("fc", 5, 99), "takes 99 features, the backbone gives"),
        (lambda s: s | {"pool.p": torch.ones(1)}, f"and pool.p {BESIDES}"),
        (lambda s: {f"{net}.{k}": v for k, v in s.items() for net in ("student", "teacher")},
         r"several networks, student\.backbone\.\* and teacher\.backbone"),
        (without_head, "test_resnet without a classifier, and no head"),
    ],
)  # fmt: skip
def test_more_than_one_linear_layer_is_refused_by_name(change: Change, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read(change(make("test_resnet").state_dict()))


def test_missing_or_wrong_backbone_is_named() -> None:
    state = make("test_resnet").state_dict()
    with pytest.raises(CheckpointError, match="give that model's name with --backbone"):
        read(state, None)
    with pytest.raises(CheckpointError, match="the file's tensors are not those of resnet18"):
        read(state, "resnet18")


def test_body_is_found_with_the_arguments_of_config_json(tmp_path: Path) -> None:
    name, arguments = "eva02_tiny_patch14_224", {"depth": 1, "patch_size": 16, "qkv_fused": True}
    arguments |= {"ref_feat_shape": [4, 4], "img_size": [64, 64]}
    torch.manual_seed(0)
    module = nn.Sequential(timm.create_model(name, num_classes=0, **arguments), nn.Module())
    module[1].head = nn.Sequential(nn.Linear(module[0].num_features, 5))  # as PixAI's
    shake(module, 0.1).eval()
    config = {"architecture": name, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    network = load_checkpoint(save(module.state_dict(), tmp_path))
    images = torch.rand(2, 3, network.config.input.height, network.config.input.width)
    assert_gives(network, images, module[1].head(module[0](images)))
