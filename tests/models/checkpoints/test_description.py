"""Hints fit a checkpoint, or are refused; names are put in order."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.description import (
    CheckpointError,
    Hints,
    add_hint_flags,
    read_hints,
    read_names,
)
from models.config import NetworkConfig
from models.network import Network
from tests.export.tiny_network import INPUT, LABELS, make_network
from tests.models.checkpoints import assert_gives, assert_refused, read_config

HEIGHT, WIDTH = INPUT.height, INPUT.width
PARSER = argparse.ArgumentParser()
add_hint_flags(PARSER)


@pytest.mark.parametrize(
    ("options", "hint", "reason"),
    [
        ("--backbone resnet50", {"backbone": "resnet50"}, "was made with .*, not resnet50"),
        ("--num-heads 3", {"num_heads": 3}, "has 4 attention heads, not 3"),
        ("--pre-norm", {"pre_norm": True}, "has its norms behind the attention"),
        ("--crop", {"crop": True}, "takes whole photos: leave out --crop"),
        ("", {"embedding_template": "{}"}, "has trained labels, so it takes no embeddings"),
    ],
)
def test_hint_is_refused_when_it_contradicts_the_file(
    tmp_path: Path, options: str, hint: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, make_network(), LABELS, {})
    assert_refused(path, f"a.safetensors {reason}", **hint)
    if options:
        assert read_hints(PARSER.parse_args(options.split())) == Hints(**hint)


def test_other_image_size_is_taken_and_its_cost_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, images = make_network(), torch.randn(2, 3, 64, 64)
    write_checkpoint(tmp_path / "a.safetensors", network, LABELS, {})
    with caplog.at_level("INFO"), torch.inference_mode():
        assert_gives(tmp_path / "a.safetensors", images, network(images), image_size=64)
    cost = f"64 x 64 pixels, not {HEIGHT} x {WIDTH}: 2.67 times as many pixels, 4 tokens for"
    assert cost in caplog.text
    caplog.clear()
    spec = read_config(tmp_path / "a.safetensors", Hints(image_size=64)).input
    assert spec == INPUT.model_copy(update={"height": 64, "width": 64})
    assert read_config(tmp_path / "a.safetensors").input == INPUT


@pytest.mark.parametrize(
    ("backbone", "head", "reason"),
    [
        ("test_vit", {"kind": "gap", "encoder_width": 64},
         "made for 64 x 64 pixels, and cannot take 96 x 96: .* size mismatch for .*pos_embed"),
        ("test_resnet", {"kind": "query2label", "encoder_width": 96, "grid": (2, 2),
         "decoder_width": 16, "feedforward_width": 16, "num_heads": 2},
         "has positions for 64 x 64 pixels, not 96"),
    ],
)  # fmt: skip
def test_image_size_that_the_tensors_are_bound_to_stays(
    tmp_path: Path, backbone: str, head: dict[str, Any], reason: str
) -> None:
    fields = {"backbone": backbone, "input": {"height": 64, "width": 64}, "head": head}
    head["num_classes"] = len(LABELS)
    network = Network(NetworkConfig.model_validate(fields))
    write_checkpoint(tmp_path / "a.safetensors", network, LABELS, {})
    assert_refused(tmp_path / "a.safetensors", reason, image_size=96)
    assert read_config(tmp_path / "a.safetensors", Hints(image_size=64)).input.width == 64


def test_options_on_photos_are_read() -> None:
    options = "--pad #abc --channels bgr --mean 0,0.5,1 --std 0.2,0.2,1 --interpolation lanczos"
    assert read_hints(PARSER.parse_args(options.split())) == Hints(
        pad="#abc", channels="bgr", mean=(0, 0.5, 1), std=(0.2, 0.2, 1), interpolation="lanczos"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--pad whyte", "must be a colour such as white or #ffffff, or none; it is 'whyte'"),
        ("--pad #11223344", "must be a colour"),
        ("--pad white --crop", "--crop does not fit --pad white"),
        ("--mean 127,127,127", "must be R,G,B of pixels from 0 to 1"),
        ("--mean nan,0,0", "must be R,G,B"),
        ("--std 0.5", "must be R,G,B"),
        ("--std 0,1,1", "must be R,G,B"),
        ("--channels gbr", "invalid choice"),
    ],
)
def test_option_on_photos_is_refused_with_its_range(
    options: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, CheckpointError)) as refused:
        read_hints(PARSER.parse_args(options.split()))
    assert reason in f"{capsys.readouterr().err}{refused.value}"


def test_hints_that_fit_are_taken(tmp_path: Path) -> None:
    path, network = tmp_path / "a.safetensors", make_network()
    write_checkpoint(path, network, LABELS, {})
    hints = Hints(network.config.backbone, num_heads=4, pre_norm=False, plain_pixels=True)
    config = read_config(path, hints)
    assert (config.input.mean, config.input.std) == ((0, 0, 0), (1, 1, 1))
    assert read_config(path, Hints(single_label=True)).activation == "softmax"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({1: "b", 0: "a", 2: "c"}, ("a", "b", "c")),
        ({str(i): f"{i}" for i in sorted(range(12), key=str)}, tuple(f"{i}" for i in range(12))),
        ({1: "a", 2: "b"}, None),
        ({0: "a", "0": "b"}, None),
        ({"cat": 0, "dog": 1}, None),
    ],
)
def test_names_are_in_the_order_of_their_numbers(
    names: dict[object, object], expected: tuple[str, ...] | None
) -> None:
    assert read_names(names) == expected
