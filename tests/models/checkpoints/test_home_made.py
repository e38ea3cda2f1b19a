"""Classifiers that training scripts assembled: equal to their own module, or refused by name."""

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
from models.checkpoints.layouts.reader import read_foreign
from models.config import GapConfig
from models.network import Network
from tests.models import shake
from tests.models.checkpoints import assert_gives

IMAGES = torch.rand(2, 3, 64, 64)
Change = Callable[[dict[str, Any]], dict[str, Any]]


class Gem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.5]))

    def forward(self, features: Tensor) -> Tensor:
        return features.clamp(min=1e-6).pow(self.p).mean((-2, -1)).pow(1 / self.p)


class Normalised(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, scale: float, classifier: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", scale * torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))
        self.register_buffer("std", scale * torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))
        self.model = classifier

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images - self.mean) / self.std)
        return logits


def make(name: str, **parts: nn.Module) -> nn.Module:
    """A timm model without classifier, then other parts; `linear` stands for the last layer."""
    torch.manual_seed(0)
    body = timm.create_model(name, num_classes=0)
    layers = {"backbone": body, **parts, "fc": nn.Linear(body.num_features, 5)}
    module = nn.Sequential()
    for key, layer in layers.items():
        module.add_module(key, layer)
    return shake(module, 0.1).eval()


def make_numbered(*, gem: bool) -> nn.Module:
    torch.manual_seed(0)
    children = list(timm.create_model("test_resnet", num_classes=5).children())
    if gem:
        children[-2] = Gem()
    return shake(nn.Sequential(*children), 0.1).eval()


def rename(state: dict[str, Any], **places: str) -> dict[str, Any]:
    for old, new in places.items():
        state = {
            (f"{new}{key.removeprefix(f'{old}.')}" if key.startswith(f"{old}.") else key): tensor
            for key, tensor in state.items()
        }
    return state


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
    state = rename(module.state_dict(), backbone=backbone, fc=fc)
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    network = load_checkpoint(tmp_path / "a.ckpt", backbone=name)
    assert isinstance(network, Network)
    images = torch.rand(1, 3, network.config.input.height, network.config.input.width)
    assert_gives(network, images, module(images))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_numbered_children_of_a_resnet_are_named(prefix: str, tmp_path: Path) -> None:
    module = make_numbered(gem=False)
    torch.save({f"{prefix}{k}": v for k, v in module.state_dict().items()}, tmp_path / "a.pth")
    assert_gives(tmp_path / "a.pth", IMAGES, module(IMAGES), backbone="test_resnet")


def test_gem_pools_with_the_power_of_the_file(tmp_path: Path) -> None:
    module = make_numbered(gem=True)
    torch.save(module.state_dict(), tmp_path / "a.pth")
    network = load_checkpoint(tmp_path / "a.pth", backbone="test_resnet")
    assert isinstance(network, Network)
    assert isinstance(network.config.head, GapConfig)
    assert network.config.head.pooling == "gem"
    assert_gives(network, IMAGES, module(IMAGES))


@pytest.mark.parametrize("scale", [1, 255])
def test_mean_and_std_inside_the_network_are_those_of_its_photos(
    scale: float, tmp_path: Path
) -> None:
    module = Normalised(scale, make("test_resnet"))
    torch.save(module.state_dict(), tmp_path / "a.pth")
    network = load_checkpoint(tmp_path / "a.pth", backbone="test_resnet")
    assert isinstance(network, Network)
    assert network.config.input.mean == pytest.approx((0.4, 0.5, 0.6))
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (network.config.input.mean,
        network.config.input.std))  # fmt: skip
    assert_gives(network, (IMAGES - mean) / std, module(IMAGES * scale))
    with pytest.raises(CheckpointError, match="by mean: leave out --plain-pixels"):
        load_checkpoint(tmp_path / "a.pth", backbone="test_resnet", plain_pixels=True)


def test_tensors_that_only_training_uses_and_the_assumed_pooling_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    extra = dict.fromkeys(["loss.pos_weight", "val_map.thresholds", "metrics.tp"], torch.ones(5))
    with caplog.at_level(logging.INFO, "models"):
        assert read(make("test_resnet").state_dict() | extra)
    left, assumed = caplog.messages
    assert left.startswith("left out loss.pos_weight and 2 more: a loss or a metric")
    assert "test_resnet under 'backbone.', its pooling taken as timm's (avg)" in assumed


def read(state: dict[str, Any], name: str | None = "test_resnet") -> object:
    return read_foreign(state, Hints(name), Description())


def linear(place: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    return {f"{place}.weight": torch.ones(outputs, inputs), f"{place}.bias": torch.ones(outputs)}


def without_head(state: dict[str, Any]) -> dict[str, Any]:
    return {key: tensor for key, tensor in state.items() if not key.startswith("fc.")}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s | linear("fc", 9, 96) | linear("fc.3", 5, 9), "fc and fc.3 after"),
        (lambda s: s | linear("other", 3, 96), "fc and other .*of two heads"),
        (lambda s: without_head(s) | linear("1.8", 5, 192), "a mean and a maximum"),
        (lambda s: without_head(s) | linear("fc", 5, 99), "takes 99 features, the backbone gives"),
        (lambda s: without_head(s) | {"arc.weight": torch.ones(5, 96)}, "cosine or margin head"),
        (lambda s: s | {"neck.running_mean": torch.ones(96)}, "neck.running_mean besides"),
        (lambda s: s | {"mean": torch.ones(3)}, "has mean besides its backbone"),
        (lambda s: s | {"a.p": torch.ones(1), "b.p": torch.ones(1)}, r"has b\.p besides"),
        (lambda s: s | {"pool.p": -torch.ones(1)}, "power of GeM"),
        (lambda s: {f"{net}.{k}": v for k, v in s.items() for net in ("student", "teacher")},
         r"several networks, student\.backbone\.\* and teacher\.backbone"),
        (without_head, "without a classifier"),
        (lambda s: s | {"rpn.head.weight": torch.ones(1)}, "rpn.head.weight besides"),
    ],
)  # fmt: skip
def test_more_than_one_linear_layer_is_refused_by_name(change: Change, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read(change(make("test_resnet").state_dict()))


def test_gem_in_place_of_a_class_token_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"pool\.p is the power of GeM.*test_vit cannot"):
        read(make("test_vit", pool=Gem()).state_dict(), "test_vit")


def test_missing_backbone_is_asked_for_with_one_that_fits() -> None:
    with torch.device("meta"):
        state = make("resnet18").state_dict()
    with pytest.raises(CheckpointError, match=r"give --backbone .*for example resnet18, whose"):
        read(state, None)
    with pytest.raises(CheckpointError, match=r"no bn1\.bias|the file's tensors are not those"):
        read(state, "resnet50")
