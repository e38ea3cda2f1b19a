"""Whole networks of the authors, recognised by their tensors: TResNet, ResNet, Swin."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import Hints
from models.checkpoints.layouts.backbones import TRESNETS, recognise
from tests.goldens import read_golden
from tests.models.checkpoints import assert_gives, assert_refused, read_config, save
from tests.models.heads.test_goldens import write_official

State = dict[str, Tensor]


def make_official_head(width: int, grid: tuple[int, int]) -> State:
    """A recorded head of Query2Label's authors, for tokens of another width and grid."""
    torch.manual_seed(0)
    recorded = read_golden("q2l_head_80_h256_224_b2").state
    return {key: torch.from_numpy(tensor) for key, tensor in recorded.items()} | {
        "input_proj.weight": torch.randn(256, width, 1, 1) / width**0.5,
        "backbone.1.pe": torch.randn(1, 256, *grid),
    }


def write_query2label(folder: Path, head: State, body: State) -> tuple[Path, nn.Module]:
    """Returns the file of a whole network, and its head, read from a file without a backbone."""
    torch.save(head, folder / "head.pkl")
    state = head | {
        f"backbone.0.{key}": tensor
        for key, tensor in body.items()
        if not key.endswith("num_batches_tracked")  # frozen batch norms count nothing
    }
    path = folder / "checkpoint.pkl"
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    return path, load_checkpoint(folder / "head.pkl")


@pytest.mark.parametrize("encoders", [0, 1])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_query2label_on_a_resnet_is_read_from_its_file_alone(
    tmp_path: Path, encoders: int, *, pre_norm: bool
) -> None:
    head, backbone = make_official_head(512, (2, 3)), Backbone("resnet18").eval()
    if not encoders:
        head = {key: tensor for key, tensor in head.items() if ".encoder." not in key}
    if pre_norm:  # an encoder without layers has the norm too, unused
        norm = {leaf: torch.randn(256) for leaf in ("weight", "bias")}
        head |= {f"transformer.encoder.norm.{leaf}": tensor for leaf, tensor in norm.items()}
    body = {f"body.{key}": tensor for key, tensor in backbone.body.state_dict().items()}
    path, alone = write_query2label(tmp_path, head, body)
    if pre_norm and encoders:
        torch.testing.assert_close(alone.get_submodule("encoder_norm").state_dict(), norm)
    config = read_config(path)
    assert (config.head.num_encoder_layers, config.head.pre_norm) == (encoders, pre_norm)
    spec = config.input
    assert (config.backbone, spec.height, spec.width) == ("resnet18", 64, 96)
    assert spec.mean == pytest.approx((0.485, 0.456, 0.406))
    images = torch.randn(2, 3, 64, 96)
    assert_gives(path, images, alone(backbone(images)))
    assert_refused(path, "64 x 96 pixels", image_size=448)  # fixed by the position table


def test_query2label_beside_the_description_of_a_timm_model_is_refused(tmp_path: Path) -> None:
    body = {f"body.{key}": v for key, v in Backbone("resnet18").body.state_dict().items()}
    path, _ = write_query2label(tmp_path, make_official_head(512, (2, 3)), body)
    config = {"architecture": "resnet18", "pretrained_cfg": {"mean": [0.5] * 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_refused(path, r"not prepared as the config\.json or")
    content = torch.load(path)["state_dict"]
    torch.save({f"model.{key.removeprefix('module.')}": v for key, v in content.items()}, path)
    assert_refused(path, r"not prepared as the config\.json or")


def test_query2label_with_another_layer_is_refused_by_its_name(tmp_path: Path) -> None:
    head = make_official_head(512, (2, 3)) | {"neck.weight": torch.ones(3)}
    assert_refused(save(head, tmp_path), r"has neck\.weight next to")


def test_number_of_a_query2label_layer_takes_no_memory(tmp_path: Path) -> None:
    head = make_official_head(512, (2, 3))
    numbered = {k.replace("decoder.layers.1.", f"decoder.layers.{10**10}."): head[k] for k in head}
    assert_refused(save(numbered, tmp_path), r"Missing.*decoder\.1\.")


def test_backbone_that_is_not_query2labels_is_refused(tmp_path: Path) -> None:
    head = make_official_head(512, (2, 2))
    for key in ("stage0.patch_embed.proj.weight", "body.conv1.weight"):  # the first is of CvT
        path, _ = write_query2label(tmp_path, head, {key: torch.zeros(1)})
        assert_refused(path, "none of Query2Label's")


@pytest.mark.parametrize("name", TRESNETS)
def test_every_backbone_is_recognised_by_its_tensors(name: str) -> None:
    with torch.device("meta"):
        state = Backbone(name).body.state_dict()
    assert recognise(state, TRESNETS) == name
    state.pop(next(iter(state)))
    assert recognise(state, [name]) is None


@pytest.fixture
def tresnet(tmp_path: Path) -> Path:
    """A TResNet-M with its decoder, as its authors store it."""
    return write_official(read_golden("tresnet_m_224_model_b2"), tmp_path / "official.pth", "model")


def test_tresnet_needs_no_hint_but_its_image_size(tresnet: Path) -> None:
    assert read_checkpoint(tresnet).label_names == tuple(f"class {i:04d}" for i in range(80))
    config = read_config(tresnet)
    spec = config.input
    assert (config.backbone, spec.height, spec.width) == ("tresnet_m", 448, 448)
    assert (spec.mean, spec.std, spec.interpolation) == ((0, 0, 0), (1, 1, 1), "bilinear")
    assert read_config(tresnet, Hints(image_size=224)).input.height == 224


def test_converted_abn_weights_are_taken_as_they_are_and_fused_ones_refused(
    tresnet: Path, tmp_path: Path
) -> None:
    raw = torch.load(tresnet)["model"]
    norms = [key.removesuffix("running_mean") for key in raw if key.endswith("running_mean")]
    converted = raw | {f"{key}weight": raw[f"{key}weight"].abs() + 1e-5 for key in norms}
    files = (tresnet, save({"model": converted}, tmp_path))
    networks = [load_checkpoint(path, image_size=64) for path in files]
    for one, other in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)

    # The authors' fuse_bn_recursively leaves convolutions with a bias.
    fused = {key: tensor for key, tensor in raw.items() if not key.startswith(tuple(norms))}
    assert_refused(save({"model": fused}, tmp_path), "batch norms are fused")


def test_swin_in_its_authors_names_gives_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real ones are too large for a test; the smallest has the same names.
    monkeypatch.setattr(
        "models.checkpoints.layouts.backbones.SWINS", ("swin_tiny_patch4_window7_224",)
    )
    backbone, body = Backbone("swin_tiny_patch4_window7_224").eval(), {}
    for key, tensor in backbone.body.state_dict().items():
        parts = key.split(".")
        if parts[2:3] == ["downsample"]:
            parts[1] = str(int(parts[1]) - 1)
        body[".".join(parts)] = tensor
    body["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49).long()
    path, alone = write_query2label(tmp_path, make_official_head(768, (7, 7)), body)
    images = torch.randn(1, 3, 224, 224)
    assert_gives(path, images, alone(backbone(images)))
