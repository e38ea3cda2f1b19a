"""Whole networks of the authors, recognised by their tensors: TResNet, ResNet, Swin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.checkpoints.layouts.backbones import TRESNETS, recognise
from models.config import InputConfig, MLDecoderConfig, NetworkConfig, Query2LabelConfig
from models.network import Network
from tests.models.checkpoints import read_config

State = dict[str, Tensor]


def pack(state: State, prefix: str) -> State:
    """An attention of ours, under torch's names."""
    return {
        f"in_proj_{leaf}": torch.cat(
            [state[f"{prefix}{p}.{leaf}"] for p in ("query", "key", "value")]
        )
        for leaf in ("weight", "bias")
    } | {f"out_proj.{leaf}": state[f"{prefix}out.{leaf}"] for leaf in ("weight", "bias")}


def to_official_query2label(network: Network) -> State:
    """A network without self-attention in its decoder, under the authors' names."""
    state = network.head.state_dict()
    config = network.config.head
    assert isinstance(config, Query2LabelConfig)
    rows, columns = config.grid
    official = {
        "backbone.1.pe": state["positions"].mT.unflatten(2, (rows, columns)),
        "query_embed.weight": state["queries"],
        "fc.W": state["pool.weight"].squeeze(-1).unsqueeze(0),
        "fc.b": state["pool.bias"].unsqueeze(0),
        "input_proj.weight": state["embed.weight"][:, :, None, None],
        "input_proj.bias": state["embed.bias"],
    }
    for part, attention in (("encoder", "self_attn"), ("decoder", "multihead_attn")):
        layers = {key.split(".")[1] for key in state if key.startswith(f"{part}.")}
        for i in layers:
            theirs, ours = f"transformer.{part}.layers.{i}.", f"{part}.{i}."
            packed = pack(state, f"{ours}attention.")
            official |= {f"{theirs}{attention}.{k}": v for k, v in packed.items()}
            for key, tensor in state.items():
                if key.startswith(ours) and ".attention." not in key:
                    name = key.removeprefix(ours).removeprefix("feedforward.")
                    official[f"{theirs}{name}"] = tensor
    for leaf in ("weight", "bias"):
        official[f"transformer.decoder.norm.{leaf}"] = state[f"norm.{leaf}"]
        if f"encoder_norm.{leaf}" in state:
            official[f"transformer.encoder.norm.{leaf}"] = state[f"encoder_norm.{leaf}"]
    return official


def make_query2label(
    backbone: str, grid: tuple[int, int], stride: int = 32, **changes: Any
) -> Network:
    torch.manual_seed(0)
    size = (stride * grid[0], stride * grid[1])
    head = Query2LabelConfig(
        num_classes=6, encoder_width=Backbone(backbone, size).width, decoder_width=16,
        num_heads=4, feedforward_width=24, grid=grid, **changes,
    )  # fmt: skip
    prepared = InputConfig(height=size[0], width=size[1])
    network = Network(NetworkConfig(backbone=backbone, input=prepared, head=head))
    network.head.positions.normal_()  # type: ignore[union-attr, operator]
    return network.eval()


def write_query2label(network: Network, prefix: str, path: Path) -> Path:
    state = to_official_query2label(network)
    state |= {
        f"{prefix}{key}": value
        for key, value in network.backbone.body.state_dict().items()
        if not key.endswith("num_batches_tracked")  # frozen batch norms count nothing
    }
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    return path


@pytest.mark.parametrize("changes", [{}, {"pre_norm": True}, {"num_encoder_layers": 0}])
def test_query2label_on_a_resnet_is_read_from_its_file_alone(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    network = make_query2label("resnet18", (2, 3), **changes)
    path = write_query2label(network, "backbone.0.body.", tmp_path / "checkpoint.pkl")
    config = read_config(path)
    assert config.backbone == "resnet18"
    spec = config.input
    assert (spec.height, spec.width, spec.interpolation) == (64, 96, "bilinear")
    assert spec.mean == pytest.approx((0.485, 0.456, 0.406))
    images, found = torch.randn(2, 3, 64, 96), load_checkpoint(path)
    with torch.inference_mode():
        torch.testing.assert_close(found(images), network(images), rtol=0, atol=0)


def test_query2labels_norm_of_an_encoder_without_layers_shows_the_place_of_the_norms(
    tmp_path: Path,
) -> None:
    network = make_query2label("resnet18", (2, 2), num_encoder_layers=0, pre_norm=True)
    path = write_query2label(network, "backbone.0.body.", tmp_path / "checkpoint.pkl")
    content = torch.load(path, weights_only=True)
    for leaf in ("weight", "bias"):
        content["state_dict"][f"module.transformer.encoder.norm.{leaf}"] = torch.randn(16)
    torch.save(content, path)
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(load_checkpoint(path)(images), network(images), rtol=0, atol=0)


def test_query2labels_position_table_fixes_the_image_size(tmp_path: Path) -> None:
    network = make_query2label("resnet18", (2, 2))
    path = write_query2label(network, "backbone.0.body.", tmp_path / "checkpoint.pkl")
    with pytest.raises(CheckpointError, match="64 x 64 pixels"):
        load_checkpoint(path, image_size=448)
    assert load_checkpoint(path, image_size=64)


def to_official_tresnet(body: nn.Module) -> State:
    """The authors' names for timm's, with weights whose InPlaceABN value is timm's."""
    timm_keys = list(body.state_dict())
    official: State = {}
    for key in timm_keys:
        tensor = body.state_dict()[key]
        theirs = key.replace(".conv.", ".0.").replace(".bn.", ".1.")
        # A convolution followed by a blur is nested one level deeper.
        owner = key.partition(".conv.")[0].partition(".bn.")[0]
        if any(k.startswith(f"{owner}.aa.") for k in timm_keys):
            theirs = theirs.replace(owner, f"{owner}.0", 1)
        official[theirs] = -(tensor.abs()) if key.endswith("bn.weight") else tensor
    return official


@pytest.mark.parametrize("name", TRESNETS)
def test_every_tresnet_is_recognised_by_its_tensors(name: str) -> None:
    with torch.device("meta"):
        body = Backbone(name).body
    assert recognise(body.state_dict(), TRESNETS) == name


def test_no_two_tresnets_are_taken_for_one_another() -> None:
    with torch.device("meta"):
        state = Backbone("tresnet_m").body.state_dict()
    state.pop("body.layer4.2.conv1.conv.weight")
    assert recognise(state, TRESNETS) is None


def write_tresnet(path: Path, **extra: object) -> Path:
    """A TResNet-M and a small head, as the authors store them."""
    torch.manual_seed(0)
    head = MLDecoderConfig(
        num_classes=4, encoder_width=2048, decoder_width=16, num_heads=8, feedforward_width=8
    )
    prepared = InputConfig(height=64, width=64)
    network = Network(NetworkConfig(backbone="tresnet_m", input=prepared, head=head))
    state = {f"head.decoder.{k}": v for k, v in _official_head(network.head.state_dict()).items()}
    torch.save({"model": to_official_tresnet(network.backbone.body) | state, **extra}, path)
    return path


def _official_head(ours: State) -> State:
    theirs = {
        "embed_standart.weight": ours["embed.weight"],
        "embed_standart.bias": ours["embed.bias"],
        "query_embed.weight": ours["queries"],
        "duplicate_pooling": ours["pool.weight"],
        "duplicate_pooling_bias": ours["pool.bias"],
    }
    packed = pack(ours, "layer.attention.")
    theirs |= {f"layers.0.multihead_attn.{key}": tensor for key, tensor in packed.items()}
    for key, tensor in ours.items():
        if key.startswith("layer.") and ".attention." not in key:
            theirs[key.replace("layer.", "layers.0.")] = tensor
    return theirs


def test_tresnet_needs_no_hint_but_its_image_size(tmp_path: Path) -> None:
    names = {0: "cat", 1: "dog", 2: "bus", 3: "sea"}
    path = write_tresnet(tmp_path / "official.pth", idx_to_class=names)
    assert read_checkpoint(path).label_names == ("cat", "dog", "bus", "sea")
    config = read_config(path)
    spec = config.input
    assert (config.backbone, spec.height, spec.width) == ("tresnet_m", 448, 448)
    assert (spec.mean, spec.std, spec.interpolation) == ((0, 0, 0), (1, 1, 1), "bilinear")
    assert read_config(path, Hints(image_size=224)).input.height == 224


def test_converted_abn_weights_are_taken_as_they_are_and_fused_ones_refused(tmp_path: Path) -> None:
    path = write_tresnet(tmp_path / "official.pth")
    content = torch.load(path, weights_only=True)
    raw = content["model"]
    norms = [key.replace("running_mean", "weight") for key in raw if key.endswith("running_mean")]
    converted = raw | {key: raw[key].abs() + 1e-5 for key in norms}
    torch.save({"model": converted}, tmp_path / "converted.pth")
    networks = [load_checkpoint(p, image_size=64) for p in (path, tmp_path / "converted.pth")]
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)

    for key in norms:  # the authors' fuse_bn_recursively leaves convolutions with a bias
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            del raw[key.replace("weight", leaf)]
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="batch norms are fused"):
        load_checkpoint(path)


def test_swin_in_its_authors_names_gives_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real ones are too large for a test; the smallest has the same names.
    monkeypatch.setattr(
        "models.checkpoints.layouts.backbones.SWINS", ("swin_tiny_patch4_window7_224",)
    )
    network = make_query2label("swin_tiny_patch4_window7_224", (7, 7))
    state = to_official_query2label(network)
    for key, tensor in network.backbone.body.state_dict().items():
        parts = key.split(".")
        if parts[2:3] == ["downsample"]:
            parts[1] = str(int(parts[1]) - 1)
        state["backbone.0." + ".".join(parts)] = tensor
    state["backbone.0.layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49).long()
    torch.save({"state_dict": state}, tmp_path / "checkpoint.pkl")
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "checkpoint.pkl")(images)
        torch.testing.assert_close(found, network(images), rtol=0, atol=0)


def test_a_whole_zero_shot_network_takes_embeddings_as_second_argument(tmp_path: Path) -> None:
    path = write_tresnet(tmp_path / "official.pth")
    content = torch.load(path, weights_only=True)
    state = content["model"]
    del state["head.decoder.query_embed.weight"]
    state["head.decoder.duplicate_pooling"] = torch.randn(16, 1)
    state["head.decoder.duplicate_pooling_bias"] = torch.zeros(1)
    state["head.wordvec_proj.weight"] = torch.randn(16, 300)
    state["head.wordvec_proj.bias"] = torch.zeros(16)
    torch.save(content, path)
    assert read_config(path, Hints(image_size=64)).num_classes is None
    with torch.inference_mode():
        logits = load_checkpoint(path, image_size=64)(torch.rand(2, 3, 64, 64), torch.randn(7, 300))
    assert logits.shape == (2, 7)
