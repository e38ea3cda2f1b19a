"""Whole networks of the authors, recognised by their tensors: TResNet, ResNet, Swin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.ml_decoder import MLDecoder
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.backbones.cvt import CVTS
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.checkpoints.layouts.backbones import TRESNETS, recognise
from models.config import InputConfig, NetworkConfig, Query2LabelConfig
from models.network import Network
from tests.models.checkpoints import assert_gives, read_config

State = dict[str, Tensor]


def pack(state: State, prefix: str) -> State:
    """An attention of ours, under torch's names."""
    packed = {}
    for leaf in ("weight", "bias"):
        parts = [state[f"{prefix}{name}.{leaf}"] for name in ("query", "key", "value")]
        packed |= {
            f"in_proj_{leaf}": torch.cat(parts),
            f"out_proj.{leaf}": state[f"{prefix}out.{leaf}"],
        }
    return packed


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


@pytest.mark.parametrize(
    "changes",
    [{}, {"pre_norm": True}, {"num_encoder_layers": 0},
     {"num_encoder_layers": 0, "pre_norm": True}],
)  # fmt: skip
def test_query2label_on_a_resnet_is_read_from_its_file_alone(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    network = make_query2label("resnet18", (2, 3), **changes)
    path = write_query2label(network, "backbone.0.body.", tmp_path / "checkpoint.pkl")
    if len(changes) == 2:  # only the unused norm of an encoder without layers shows `pre_norm`
        content = torch.load(path)
        for leaf in ("weight", "bias"):
            content["state_dict"][f"module.transformer.encoder.norm.{leaf}"] = torch.randn(16)
        torch.save(content, path)
    config = read_config(path)
    spec = config.input
    assert (config.backbone, spec.height, spec.width) == ("resnet18", 64, 96)
    assert spec.mean == pytest.approx((0.485, 0.456, 0.406))
    images = torch.randn(2, 3, 64, 96)
    assert_gives(path, images, network(images))
    with pytest.raises(CheckpointError, match="64 x 96 pixels"):  # fixed by the position table
        load_checkpoint(path, image_size=448)


def to_official_tresnet(body: nn.Module) -> State:
    """The authors' names for timm's, with weights whose InPlaceABN value is timm's."""
    state, official = body.state_dict(), {}
    for key, tensor in state.items():
        theirs = key.replace(".conv.", ".0.").replace(".bn.", ".1.")
        # A convolution followed by a blur is nested one level deeper.
        owner = key.partition(".conv.")[0].partition(".bn.")[0]
        if any(k.startswith(f"{owner}.aa.") for k in state):
            theirs = theirs.replace(owner, f"{owner}.0", 1)
        official[theirs] = -(tensor.abs()) if key.endswith("bn.weight") else tensor
    return official


@pytest.mark.parametrize("name", [*TRESNETS, *CVTS])
def test_every_backbone_is_recognised_by_its_tensors(name: str) -> None:
    with torch.device("meta"):
        state = Backbone(name).body.state_dict()
    assert recognise(state, CVTS if name in CVTS else TRESNETS) == name
    state.pop(next(iter(state)))
    assert recognise(state, [name]) is None


def write_tresnet(path: Path, **extra: object) -> Path:
    """A TResNet-M as its authors store it, and a small head."""
    torch.manual_seed(0)
    state = to_official_tresnet(Backbone("tresnet_m", (64, 64)).body)
    head = MLDecoder(4, -1, 16, 2048).state_dict()
    torch.save({"model": state | {f"head.{k}": v for k, v in head.items()}, **extra}, path)
    return path


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
    content = torch.load(path)
    raw = content["model"]
    norms = [key.removesuffix("running_mean") for key in raw if key.endswith("running_mean")]
    converted = raw | {f"{key}weight": raw[f"{key}weight"].abs() + 1e-5 for key in norms}
    torch.save({"model": converted}, tmp_path / "converted.pth")
    networks = [load_checkpoint(p, image_size=64) for p in (path, tmp_path / "converted.pth")]
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)

    # The authors' fuse_bn_recursively leaves convolutions with a bias.
    fused = {key: tensor for key, tensor in raw.items() if not key.startswith(tuple(norms))}
    torch.save({"model": fused}, path)
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
    assert_gives(tmp_path / "checkpoint.pkl", images, network(images))
