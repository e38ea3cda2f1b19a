"""Hints fit a checkpoint, or are refused; names are put in order."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from models.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from models.checkpoints.description import (
    CheckpointError,
    Hints,
    add_hint_flags,
    read_hints,
    read_names,
)
from tests.export.tiny_network import INPUT, LABELS, make_network
from tests.models.checkpoints import read_config

HEIGHT, WIDTH = INPUT.height, INPUT.width


@pytest.mark.parametrize(
    ("options", "hint", "reason"),
    [
        ("--backbone resnet50", {"backbone": "resnet50"}, "was made with .*, not resnet50"),
        ("--image-size 128", {"image_size": 128}, f"was made for {HEIGHT} x {WIDTH} pixels, not 1"),
        ("--num-heads 3", {"num_heads": 3}, "has 4 attention heads, not 3"),
        ("--pre-norm", {"pre_norm": True}, "has its norms behind the attention"),
        ("--crop", {"crop": True}, "takes whole photos: leave out --crop"),
        ("", {"embedding_template": "{}"}, "has trained labels, so it takes no embeddings"),
    ],
)
def test_hint_is_refused_when_it_contradicts_the_file(
    tmp_path: Path, options: str, hint: dict[str, Any], reason: str
) -> None:
    path, parser = tmp_path / "a.safetensors", argparse.ArgumentParser()
    write_checkpoint(path, make_network(), LABELS, {})
    with pytest.raises(CheckpointError, match=f"a.safetensors {reason}"):
        read_checkpoint(path, Hints(**hint))
    add_hint_flags(parser)
    if options:
        assert read_hints(parser.parse_args(options.split())) == Hints(**hint)


def test_options_on_photos_are_read() -> None:
    parser = argparse.ArgumentParser()
    add_hint_flags(parser)
    options = "--pad #abc --channels bgr --mean 0,0.5,1 --std 0.2,0.2,1 --interpolation lanczos"
    assert read_hints(parser.parse_args(options.split())) == Hints(
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
    parser = argparse.ArgumentParser()
    add_hint_flags(parser)
    with pytest.raises((SystemExit, CheckpointError)) as refused:
        read_hints(parser.parse_args(options.split()))
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
