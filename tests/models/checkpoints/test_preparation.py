"""`preprocess.json` is followed or refused, and a network for BGR is turned to RGB."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.checkpoints.preparation import read_preprocess, take_rgb
from models.config import InputConfig
from tests.export.tiny_network import LABELS, make_network
from tests.models import shake
from tests.models.checkpoints import assert_refused, read_config

PAD = {"type": "pad_to_size", "size": [80, 80], "interpolation": "bilinear"}
RESIZE = {"type": "resize", "size": 64, "interpolation": "bicubic", "max_size": None}
CROP, TENSOR = {"type": "center_crop", "size": [64, 64]}, {"type": "maybe_to_tensor"}
NORMALIZE = {"type": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
STAGES: list[dict[str, Any]] = [PAD, RESIZE, CROP, TENSOR, NORMALIZE]


def write_tagger(folder: Path, stages: list[dict[str, Any]] | None, **config: Any) -> nn.Module:
    """Writes a timm classifier as taggers are published; returns it."""
    folder.mkdir()
    torch.manual_seed(0)
    model = shake(timm.create_model("test_resnet", num_classes=4), 0.1).eval()
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    described = {"architecture": "test_resnet", "label_names": ["a", "b", "c", "d"], **config}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "selected_tags.csv").write_text("name\na\nb\nc\nd\n")
    if stages is not None:
        (folder / "preprocess.json").write_text(json.dumps({"test": stages, "pre": [PAD]}))
    return model


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (STAGES, {"resize_mode": "pad", "fit_size": 80, "pad_color": (255, 255, 255)}),
        ([PAD | {"size": 64, "background_color": "#010203"}, TENSOR],
         {"resize_mode": "pad", "fit_size": 64, "pad_color": (1, 2, 3), "mean": (0, 0, 0)}),
        ([{"type": "convert_rgb", "force_background": "white"}, RESIZE | {"size": [64, 64]},
          {"type": "to_tensor"}], {"resize_mode": "squash", "interpolation": "bicubic"}),
        ([RESIZE | {"size": [73]}, CROP, TENSOR, NORMALIZE], {"resize_mode": "crop"}),
    ],
)  # fmt: skip
def test_steps_become_a_preparation(stages: list[Any], expected: dict[str, object]) -> None:
    for name in ("test", "val"):
        spec = read_preprocess({name: stages})
        assert (spec.height, spec.width) == (64, 64)
        assert spec.model_dump(include=set(expected)) == expected
    if spec.resize_mode == "crop":
        assert int(64 / spec.crop_pct) == 73


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([{"type": "posterize"}, *STAGES], r"order posterize pad_to_size"),
        ([PAD | {"padding": 3}, TENSOR], r"pad_to_size with padding 3"),
        ([RESIZE | {"antialias": False}, CROP, TENSOR], r"antialias"),
        ([RESIZE | {"interpolation": "hamming"}, CROP, TENSOR], r"interpolation"),
        ([RESIZE, PAD, TENSOR], r"order resize pad_to_size maybe_to_tensor"),
        ([CROP, TENSOR], r"no step resizes"),
        ([RESIZE, TENSOR], r"needs a center_crop"),
        ([RESIZE | {"size": 60}, CROP, TENSOR], r"needs a center_crop"),
        ([PAD, CROP, TENSOR], r"center_crop must have the size"),
        ([PAD | {"size": [80, 64]}, TENSOR], r"must give squares"),
        ([PAD | {"size": 10**6}, TENSOR], r"height"),
        ([RESIZE | {"size": [64, 64, 64]}, TENSOR], r"too many values"),
        ([RESIZE | {"size": None}, CROP, TENSOR], r"NoneType"),
        ([PAD | {"background_color": "blurred"}, TENSOR], r"blurred"),
        ([PAD | {"background_color": "#11223344"}, TENSOR], r"pad_color"),
        ([RESIZE, CROP, TENSOR, NORMALIZE | {"std": [0.1, 0, 0.1]}], r"std"),
        ("none", r"string"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(stages: list[Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^preprocess\.json has .* supported: .*{reason}"):
        read_preprocess({"test": stages})


def test_file_without_stages_or_for_another_size_than_the_networks_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="neither test nor val"):
        read_preprocess({"pre": STAGES})
    cfg = {"input_size": [3, 96, 96], "fixed_input_size": True}
    write_tagger(tmp_path / "tagger", STAGES, pretrained_cfg=cfg)
    assert_refused(tmp_path / "tagger", r"has photos of 64 x 64 pixels, .* takes 96 x 96")


def test_file_overrides_timm_and_options_override_the_file(tmp_path: Path) -> None:
    cfg = {"input_size": [3, 96, 96], "mean": [0, 0, 0], "interpolation": "nearest"}
    write_tagger(tmp_path / "tagger", STAGES, pretrained_cfg=cfg)
    spec = read_config(tmp_path / "tagger", Hints()).input
    assert spec == read_preprocess({"test": STAGES})
    hints = Hints(image_size=96, pad="none", mean=(0.1, 0.2, 0.3), interpolation="lanczos")
    spec = read_config(tmp_path / "tagger", hints).input
    assert (spec.height, spec.resize_mode, spec.fit_size) == (96, "squash", None)
    assert (spec.mean, spec.std) == ((0.1, 0.2, 0.3), (0.2, 0.3, 0.4))
    assert spec.interpolation == "lanczos"
    black = read_config(tmp_path / "tagger", Hints(pad="black")).input
    assert (black.pad_color, black.fit_size) == ((0, 0, 0), 80)
    assert_refused(tmp_path / "tagger", "leave out --crop", crop=True)


def test_tagger_without_facts_on_photos_is_asked_for_both(tmp_path: Path) -> None:
    folder = tmp_path / "tagger"
    write_tagger(folder, None)
    for hints in (Hints(), Hints(channels="bgr"), Hints(pad="white")):
        with pytest.raises(CheckpointError, match=r"WD taggers v3: --channels bgr --pad white"):
            read_checkpoint(folder, hints)
    spec = read_config(folder, Hints(channels="rgb", pad="#0000ff")).input
    assert (spec.resize_mode, spec.pad_color, spec.fit_size) == ("pad", (0, 0, 255), None)
    assert read_config(folder, Hints(channels="rgb", pad="none")).input.resize_mode == "squash"


def test_network_for_bgr_takes_rgb(tmp_path: Path) -> None:
    model = write_tagger(tmp_path / "tagger", STAGES)
    network, images = load_checkpoint(tmp_path / "tagger", channels="bgr"), torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(network(images), model(images.flip(1)), atol=1e-5, rtol=0)
        assert (network(images) - model(images)).abs().max() > 5e-4


def test_bgr_is_refused_when_it_cannot_be_folded_in_or_the_file_is_our_own(tmp_path: Path) -> None:
    shuffled = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 1))
    with pytest.raises(CheckpointError, match="needs a first convolution of three channels"):
        take_rgb(shuffled, InputConfig(height=8, width=8))
    path = tmp_path / "own.safetensors"
    write_checkpoint(path, make_network(), LABELS, {})
    assert_refused(path, "made for RGB", channels="bgr")
