"""`--init` takes any checkpoint with the run's backbone, a bare backbone too."""

import argparse
from pathlib import Path

import pytest
import timm
import torch
from timm.layers.ml_decoder import add_ml_decoder_head
from torch import Tensor

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.files import read_file
from models.checkpoints.pretrained import fill_backbone
from models.config import GapConfig, HeadConfig, InputConfig, MLDecoderConfig
from models.network import Network
from models.train.build import start_from
from tests.export.tiny_network import make_network
from tests.models.checkpoints import save
from tests.models.checkpoints.test_preparation import STAGES, write_tagger


def build(backbone: str, seed: int, head: HeadConfig | None = None) -> Network:
    head = head or GapConfig(num_classes=2, encoder_width=Backbone(backbone).width)
    photos = InputConfig(height=32, width=32)
    return make_network(seed, backbone=backbone, head=head, input=photos)


def write(path: Path, network: Network) -> Path:
    write_checkpoint(path, network, ("a", "b"), {})
    return path


def start(network: Network, path: Path) -> str:
    return start_from(network, read_file(path))


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(actual) == set(expected)
    for key, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=0)


def test_start_loads_backbone_head_and_preparation_when_all_fit(tmp_path: Path) -> None:
    first, second = build("test_efficientnet", 1), build("test_efficientnet", 2)
    photos = first.config.input.model_copy(update={"mean": (0.5, 0.4, 0.3)})
    first.config = first.config.model_copy(update={"input": photos})
    taken = start(second, write(tmp_path / "first.safetensors", first))
    assert taken.startswith("its backbone and its head, its mean (0.5, 0.4, 0.3), std ")
    assert_equal(second.state_dict(), first.state_dict())
    assert second.config.input == photos


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("gap", "decoder"), ("decoder", "gap"), ("larger", "gap"), ("decoder", "more heads")],
)
def test_start_leaves_a_head_of_another_build_unchanged(
    tmp_path: Path, theirs: str, ours: str
) -> None:
    shape = {"decoder_width": 8, "num_heads": 2, "feedforward_width": 8}
    shape |= {"num_classes": 2, "encoder_width": 256}
    heads = {
        "gap": GapConfig(num_classes=2, encoder_width=256),
        "larger": GapConfig(num_classes=3, encoder_width=256),
        "decoder": MLDecoderConfig.model_validate(shape),
        "more heads": MLDecoderConfig.model_validate(shape | {"num_heads": 4}),
    }
    first = build("test_efficientnet", 1, heads[theirs])
    second = build("test_efficientnet", 2, heads[ours])
    before = {key: tensor.clone() for key, tensor in second.head.state_dict().items()}
    taken = start(second, write(tmp_path / "first.safetensors", first))
    assert taken == "its backbone; its head is built differently"
    assert_equal(second.backbone.state_dict(), first.backbone.state_dict())
    assert_equal(second.head.state_dict(), before)


def test_start_loads_the_backbone_of_a_bare_classifier(tmp_path: Path) -> None:
    first, second = build("tresnet_m", 1), build("tresnet_m", 2)
    body = first.backbone.body.state_dict()
    # Frozen batch norms store no counters.
    state = {k: v for k, v in body.items() if not k.endswith("num_batches_tracked")}
    state |= {"head.fc.weight": torch.zeros(9, 2048), "head.fc.bias": torch.zeros(9)}
    assert start(second, save({"model": state}, tmp_path)) == "its backbone"
    assert_equal(second.backbone.state_dict(), first.backbone.state_dict())


@pytest.mark.parametrize("name", ["test_vit2", "test_vit3"])  # pooled by mean, by attention
def test_start_loads_the_backbone_of_a_vit_with_its_own_pooling(tmp_path: Path, name: str) -> None:
    torch.manual_seed(1)
    whole, network = timm.create_model(name, img_size=32).state_dict(), build(name, 2)
    whole = {key: torch.rand_like(tensor) for key, tensor in whole.items()}
    assert start(network, save(whole, tmp_path)) == "its backbone"
    body = network.backbone.body.state_dict()
    expected = {key.replace("fc_norm.", "norm."): tensor for key, tensor in whole.items()}
    assert_equal(body, {key: expected[key] for key in body})
    other = build(name, 3).backbone
    fill_backbone(other, whole)  # as weights from timm do
    assert_equal(other.body.state_dict(), body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"conv_stem.weight": None}, "Missing.*conv_stem.weight"),
        ({"conv_stem.weight": torch.zeros(1, 3, 3, 3)}, "size mismatch for conv_stem.weight"),
        ({"stage.weight": torch.zeros(1)}, "Unexpected.*stage.weight"),
    ],
)
def test_start_names_the_weight_that_does_not_fit(
    tmp_path: Path, change: dict[str, Tensor | None], reason: str
) -> None:
    network = build("test_efficientnet", 1)
    state = network.backbone.body.state_dict() | change
    path = save({key: tensor for key, tensor in state.items() if tensor is not None}, tmp_path)
    with pytest.raises(CheckpointError, match=reason):
        start(network, path)


@pytest.mark.parametrize("with_head", [True, False])
def test_start_takes_the_preparation_from_an_authors_file(tmp_path: Path, with_head: bool) -> None:
    body = timm.create_model("test_resnet", num_classes=5)
    given = {"mean": [0.5, 0.4, 0.3], "std": (0.2, 0.2, 0.2), "interpolation": "nearest"}
    content = {
        "arch": "test_resnet",
        "args": argparse.Namespace(model="test_resnet", img_size=96, **given),
        "state_dict": (add_ml_decoder_head(body) if with_head else body).state_dict(),
    }
    network = build("test_resnet", 1)
    pixels = "its mean (0.5, 0.4, 0.3), std (0.2, 0.2, 0.2) and nearest interpolation"
    assert pixels in start(network, save(content, tmp_path))
    # The size is the recipe's.
    assert network.config.input == InputConfig.model_validate({"height": 32, "width": 32, **given})


def test_start_takes_the_padding_of_a_checkpoint_and_of_a_tagger(tmp_path: Path) -> None:
    network, other = build("test_resnet", 1), build("test_resnet", 2)
    padded = {"resize_mode": "pad", "pad_color": (0, 0, 0), "fit_size": 40}
    spec = InputConfig.model_validate({"height": 64, "width": 64, **padded})
    other.config = other.config.model_copy(update={"input": spec})
    assert "its padding" in start(network, write(tmp_path / "other.safetensors", other))
    assert network.config.input == spec.model_copy(update={"height": 32, "width": 32})
    write_tagger(tmp_path / "tagger", STAGES)
    assert "its padding, its mean (0.5, 0.4, 0.3)" in start(network, tmp_path / "tagger")


def test_start_refuses_a_tagger_that_may_take_bgr(tmp_path: Path) -> None:
    write_tagger(tmp_path / "tagger", None)
    with pytest.raises(CheckpointError, match="may take BGR"):
        start(build("test_resnet", 1), tmp_path / "tagger")


def test_start_refuses_another_backbone(tmp_path: Path) -> None:
    network = build("test_efficientnet", 2)
    other = write(tmp_path / "resnet.safetensors", build("test_resnet", 1))
    with pytest.raises(CheckpointError, match="made with test_resnet, not test_efficientnet"):
        start(network, other)
