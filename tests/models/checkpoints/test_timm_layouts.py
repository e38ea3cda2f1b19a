"""Checkpoints of timm's own `add_ml_decoder_head` and of its training script."""

import argparse
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
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from tests.goldens import read_golden
from tests.models.checkpoints import read_config
from tests.models.heads.test_goldens import write_official


def compute(head: MLDecoder, features: Tensor) -> Tensor:
    """Returns the logits of timm's head; its own forward pass needs a torch older than 2.1."""
    tokens = features if features.dim() == 3 else features.flatten(2).mT
    tokens = head.embed_standart(tokens).relu()
    queries = head.query_embed.weight.unsqueeze(1).expand(-1, len(tokens), -1)
    decoded = head.decoder.layers[0](queries, tokens.transpose(0, 1)).transpose(0, 1)
    logits = (decoded.transpose(0, 1) @ head.duplicate_pooling).transpose(0, 1).flatten(1)
    return logits[:, : head.num_classes] + head.duplicate_pooling_bias


@pytest.mark.parametrize(("classes", "groups"), [(7, -1), (81, 20), (203, 100)])
def test_timms_head_is_read_under_its_own_names(classes: int, groups: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = MLDecoder(classes, groups, 64, 96).eval()
    torch.save(head.state_dict(), tmp_path / "head.pth")
    features = torch.rand(2, 96, 3, 4)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "head.pth")(features)
        torch.testing.assert_close(found, compute(head, features))


@pytest.mark.parametrize("names", [("self_attn",), ("self_attn", "multihead_attn")])
def test_attention_renamed_for_newer_torch_is_the_attention_to_the_image(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    head = MLDecoder(7, -1, 64, 96).eval()
    state = {
        key.replace("multihead_attn", name): tensor
        for key, tensor in head.state_dict().items()
        for name in names
    }
    torch.save(state, tmp_path / "head.pth")
    features = torch.rand(2, 96, 3, 4)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "head.pth")(features)
        torch.testing.assert_close(found, compute(head, features))


@pytest.mark.parametrize(("classes", "groups"), [(7, -1), (9, 6)])  # 9 in 6 groups use 5
def test_self_attention_of_torchs_own_layer_is_folded_into_the_queries(
    classes: int, groups: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    head = MLDecoder(classes, groups, 64, 96)
    head.decoder.layers[0] = nn.TransformerDecoderLayer(64, 8, 2048)
    for parameter in head.parameters():
        if parameter.dim() == 1:  # zero biases would hide mistakes
            parameter.data += 0.1 * torch.randn_like(parameter)
    head.eval()
    torch.save(head.state_dict(), tmp_path / "head.pth")
    features = torch.rand(2, 96, 3, 4)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "head.pth")(features)
        torch.testing.assert_close(found, compute(head, features))


def test_self_attention_between_open_labels_is_refused(tmp_path: Path) -> None:
    golden, layer = read_golden("zsl_81_768_7x7_b3"), "decoder.layers.0."
    for leaf in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"):
        golden.state[f"{layer}self_attn.{leaf}"] = golden.state[f"{layer}multihead_attn.{leaf}"] + 1
    with pytest.raises(CheckpointError, match="would depend on the other labels"):
        load_checkpoint(write_official(golden, tmp_path / "head.pth"))


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return add_ml_decoder_head(timm.create_model(name, num_classes=5)).eval()


@pytest.mark.parametrize(
    ("name", "place"), [("test_resnet", "fc"), ("test_efficientnet", "classifier")]
)
def test_file_of_timms_training_script_needs_no_hints(
    name: str, place: str, tmp_path: Path
) -> None:
    model = make_model(name)
    averaged = {f"module.{key}": tensor for key, tensor in model.state_dict().items()}
    content = {
        "epoch": 3,
        "arch": name,
        "state_dict": {key: torch.zeros_like(tensor) for key, tensor in averaged.items()},
        "state_dict_ema": averaged,
        "args": argparse.Namespace(model=name, lr=1e-3),
        "metric": np.float64(76.5),
    }
    torch.save(content, tmp_path / "model_best.pth.tar")
    path = tmp_path / "model_best.pth.tar"
    assert read_config(path).backbone == name
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = compute(getattr(model, place), model.forward_features(images))
        torch.testing.assert_close(load_checkpoint(path)(images), expected)


def test_preparation_is_read_from_timms_training_script(tmp_path: Path) -> None:
    model = make_model("test_resnet")
    given = {"img_size": 96, "input_size": None, "mean": [0.5, 0.4, 0.3], "std": None}
    content = {
        "arch": "test_resnet",
        "state_dict": model.state_dict(),
        "args": argparse.Namespace(model="test_resnet", interpolation="bilinear", **given),
    }
    path = tmp_path / "last.pth.tar"
    torch.save(content, path)
    spec = read_config(path).input
    assert (spec.height, spec.width) == (96, 96)
    assert (spec.mean, spec.interpolation) == ((0.5, 0.4, 0.3), "bilinear")
    assert spec.std == input_config("test_resnet").std
    assert read_config(path, Hints(image_size=128)).input.height == 128
    # Another script's arguments may mean something else.
    torch.save({**content, "args": argparse.Namespace(mean="grey")}, path)
    assert read_config(path).input == input_config("test_resnet")


@pytest.mark.parametrize(
    ("arch", "size"),
    [("tresnet_m", 224), ("tresnet_m.miil_in1k_448", 448), ("our_tresnet", 448), (None, 448)],
)
def test_tresnet_has_timms_size_when_timm_trained_it_else_the_authors(
    arch: str | None, size: int, tmp_path: Path
) -> None:
    photos = dict.fromkeys(("img_size", "input_size", "mean", "std"))
    content = {
        "arch": arch,
        "args": argparse.Namespace(model=arch, interpolation="", **photos),
        "state_dict": make_model("tresnet_m").state_dict(),
    }
    torch.save(content, tmp_path / "last.pth.tar")
    spec = read_config(tmp_path / "last.pth.tar").input
    assert (spec.height, spec.width) == (size, size)


@pytest.mark.parametrize("name", ["test_vit", "test_vit3"])  # class token, and registers too
def test_prefix_tokens_of_a_vit_are_asked_for_and_heeded(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, global_pool="")
    model.head = MLDecoder(5, -1, 64, model.num_features)
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(CheckpointError, match="give --prefix-tokens keep"):
        load_checkpoint(tmp_path / "vit.pth", backbone=name)
    images, first = torch.rand(2, 3, 160, 160), model.num_prefix_tokens
    with torch.inference_mode():
        tokens = model.eval().forward_features(images)
        for choice, seen in ("keep", tokens), ("drop", tokens[:, first:]):
            network = load_checkpoint(tmp_path / "vit.pth", backbone=name, prefix_tokens=choice)
            torch.testing.assert_close(network(images), compute(model.head, seen))
    network = read_checkpoint(tmp_path / "vit.pth", Hints(name, prefix_tokens="keep")).network
    write_checkpoint(tmp_path / "own.safetensors", network, (), {})
    assert read_config(tmp_path / "own.safetensors").prefix_tokens == "keep"
    with pytest.raises(CheckpointError, match="was made with --prefix-tokens keep"):
        load_checkpoint(tmp_path / "own.safetensors", prefix_tokens="drop")


def spoil(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns last weights, which must not be served beside averaged ones."""
    return {key: torch.zeros_like(tensor) for key, tensor in state.items()}


def rename(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"state_dict": rename(s, "model."), "callbacks": {}, "epoch": 1},
        lambda s: {"state_dict": rename(s, "net.") | {"loss.weight": torch.ones(5)}},
        lambda s: {"state_dict": rename(s, "model._orig_mod.")},
        lambda s: {"model_state_dict": s, "optimizer_state_dict": {}},
        lambda s: {"model": spoil(s), "ema": s},
        lambda s: {"model": spoil(s), "ema": {"module": s, "updates": 3}},
        lambda s: {"n_averaged": torch.tensor(3), **rename(s, "module.")},
        lambda s: {key: t.bfloat16() if t.is_floating_point() else t for key, t in s.items()},
    ],
    ids=["lightning", "loss", "compiled", "epoch", "ema", "ema-module", "averaged", "bfloat16"],
)
def test_unwrap_finds_tensors_in_every_wrapping(
    wrap: Callable[[dict[str, Tensor]], object], tmp_path: Path
) -> None:
    model = make_model("test_resnet")
    torch.save(wrap(model.state_dict()), tmp_path / "model.ckpt")
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "model.ckpt", backbone="test_resnet")(images)
        wanted = compute(model.get_submodule("fc"), model.forward_features(images))
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)


def test_file_of_two_networks_is_refused(tmp_path: Path) -> None:
    state = make_model("test_resnet").state_dict()
    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": rename(state, "model.") | rename(state, "teacher.")}, path)
    with pytest.raises(CheckpointError, match="several networks"):
        load_checkpoint(path, backbone="test_resnet")
    torch.save({"state_dict": rename(state, "model.")}, path)
    assert load_checkpoint(path, backbone="test_resnet")


def test_tensors_of_another_backbone_are_named(tmp_path: Path) -> None:
    path, state = tmp_path / "model.pth", make_model("resnet18").state_dict()
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"not those of resnet34: there is no layer1\.2\.bn1"):
        load_checkpoint(path, backbone="resnet34")
    torch.save(state | {"body.bn1.bias": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match=r"not those of resnet18: there is a body\.bn1\.bias"):
        load_checkpoint(path, backbone="resnet18")
    wider = {"conv1.weight": torch.zeros(32, 3, 7, 7)}
    torch.save(state | wider, path)
    with pytest.raises(CheckpointError, match=r"conv1\.weight has shape \(32, 3, 7, 7\), not \(64"):
        load_checkpoint(path, backbone="resnet18")
    torch.save(state, path)
    assert load_checkpoint(path, backbone="resnet18")


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_module_with_backbone_and_head_in_attributes_is_read(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.backbone = timm.create_model(name, num_classes=9).eval()  # its classifier is not used
    module.ml_decoder_head = MLDecoder(5, -1, 64, module.backbone.num_features).eval()
    torch.save(module.state_dict(), tmp_path / "model.pth")
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        features = module.backbone.forward_features(images)
        found = load_checkpoint(tmp_path / "model.pth", backbone=name)(images)
        torch.testing.assert_close(found, compute(module.ml_decoder_head, features))


@pytest.mark.parametrize(
    "name",
    ["convnext_atto", "edgenext_xx_small", "test_convnext", "tiny_vit_5m_224",
     "hiera_tiny_224", "hgnetv2_b0", "efficientformerv2_s0",
     pytest.param("davit_tiny", marks=pytest.mark.slow)],
)  # fmt: skip
def test_authors_head_replaces_all_of_a_models_own(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=9).eval()
    del model.head
    model.head = MLDecoder(5, -1, 64, model.num_features).eval()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    with torch.inference_mode():
        images = torch.rand(1, 3, 224, 224)
        found = load_checkpoint(tmp_path / "model.pth", backbone=name, image_size=224)(images)
        torch.testing.assert_close(found, compute(model.head, model.forward_features(images)))


def make_module(name: str, width: int | None = None, **options: Any) -> Any:
    """A module as in the README of ML-Decoder, with lively norms, in eval mode."""
    torch.manual_seed(0)
    module = nn.Module()
    module.backbone = timm.create_model(name, **options)
    width = width or module.backbone.num_features
    module.ml_decoder_head = MLDecoder(5, -1, 64, width)
    for parameter in module.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return module.eval()


def test_head_behind_the_norm_of_a_models_own_head_is_asked_for_and_heeded(tmp_path: Path) -> None:
    module = make_module("test_convnext", num_classes=0, global_pool="")
    path, images = tmp_path / "model.pth", torch.rand(2, 3, 160, 160)
    torch.save(module.state_dict(), path)
    with pytest.raises(CheckpointError, match="give --features forward or --features forward_f"):
        load_checkpoint(path, backbone="test_convnext")
    with torch.inference_mode():
        for method, features in (
            ("forward", module.backbone(images)),
            ("forward_features", module.backbone.forward_features(images)),
        ):
            network = load_checkpoint(path, backbone="test_convnext", features=method)
            expected = compute(module.ml_decoder_head, features)
            torch.testing.assert_close(network(images), expected)
    network = read_checkpoint(path, Hints("test_convnext", features="forward")).network
    write_checkpoint(tmp_path / "own.safetensors", network, (), {})
    with pytest.raises(CheckpointError, match=r"was made with --features forward$"):
        load_checkpoint(tmp_path / "own.safetensors", features="forward_features")
    own = load_checkpoint(tmp_path / "own.safetensors")
    torch.testing.assert_close(own(images), network(images))


@pytest.mark.parametrize(
    ("name", "options", "width", "method"),
    [
        ("test_convnext", {"num_classes": 9}, None, "forward_features"),  # `forward` gives 9 scores
        ("mobilenetv3_small_050", {"num_classes": 0, "global_pool": ""}, 1024, "forward"),
        ("mobilenetv3_small_050", {"num_classes": 0, "global_pool": ""}, 288, "forward_features"),
        ("mobilenetv3_small_050", {"num_classes": 0}, 288, "forward_features"),
    ],
)
def test_classifier_or_width_shows_which_features_a_head_takes(
    tmp_path: Path, name: str, options: dict[str, Any], width: int | None, method: str
) -> None:
    module = make_module(name, width, **options)
    torch.save(module.state_dict(), tmp_path / "model.pth")
    images = torch.rand(1, 3, 160, 160)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "model.pth", backbone=name)(images)
        expected = compute(module.ml_decoder_head, getattr(module.backbone, method)(images))
        torch.testing.assert_close(found, expected)


def test_tokens_of_a_model_whose_norm_is_behind_its_pooling_have_none(tmp_path: Path) -> None:
    module = make_module("test_vit2", num_classes=0)
    assert module.backbone.fc_norm.weight.numel() > 1
    torch.save(module.state_dict(), tmp_path / "model.pth")
    hints = Hints("test_vit2", prefix_tokens="keep")
    network = read_checkpoint(tmp_path / "model.pth", hints).network
    write_checkpoint(tmp_path / "own.safetensors", network, (), {})
    images = torch.rand(2, 3, 160, 160)
    with torch.inference_mode():
        expected = compute(module.ml_decoder_head, module.backbone.forward_features(images))
        for found in (network, load_checkpoint(tmp_path / "own.safetensors")):
            torch.testing.assert_close(found(images), expected)


def test_head_of_another_width_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save(make_module("test_resnet", 99, num_classes=0).state_dict(), path)
    with pytest.raises(CheckpointError, match="test_resnet gives tokens of width 96, the file's h"):
        load_checkpoint(path, backbone="test_resnet")
    torch.save(make_module("test_resnet", num_classes=0).state_dict(), path)
    assert load_checkpoint(path, backbone="test_resnet")


def test_head_in_the_place_of_a_classifier_is_behind_its_norm(tmp_path: Path) -> None:
    model = make_module("test_convnext", num_classes=0, global_pool="").backbone
    torch.manual_seed(0)
    model.head.fc = MLDecoder(5, -1, 64, model.num_features).eval()
    torch.save({"model": rename(model.state_dict(), "net.")}, tmp_path / "model.pth")
    images = torch.rand(1, 3, 160, 160)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "model.pth", backbone="test_convnext")(images)
        normed = model.head.norm(model.forward_features(images))
        torch.testing.assert_close(found, compute(model.head.fc, normed))


def test_batch_norms_fused_into_convolutions_are_refused_as_such(tmp_path: Path) -> None:
    state = make_model("resnet18").state_dict()
    norms = [key.removesuffix("running_mean") for key in state if key.endswith("running_mean")]
    fused = {key: tensor for key, tensor in state.items() if not key.startswith(tuple(norms))}
    fused |= {"conv1.bias": torch.zeros(64)}
    torch.save(fused, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="are fused"):
        load_checkpoint(tmp_path / "model.pth", backbone="resnet18")


def test_missing_backbone_names_the_flag_and_a_backbone_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "bare.pth"
    torch.save(make_model("resnet18").state_dict(), path)
    with pytest.raises(CheckpointError, match=r"--backbone .*resnet18, whose tensors fit"):
        load_checkpoint(path)
    assert load_checkpoint(path, backbone="resnet18")
