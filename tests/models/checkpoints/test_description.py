"""Hints fit a checkpoint, or are refused; names are put in order."""

from pathlib import Path
from typing import Any

import pytest

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import CheckpointError, Hints, read_names
from models.evaluate import main
from tests.models.test_average import LABELS, write_network
from tests.support.photos import encode_picture, make_picture


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ({"backbone": "resnet50"}, "was made with test_efficientnet, not resnet50"),
        ({"image_size": 128}, "was made for 32 x 32 pixels, not 128"),
        ({"num_heads": 3}, "has no attention heads, not 3"),
        ({"pre_norm": True}, "has its norms behind the attention"),
    ],
)
def test_hint_is_refused_when_it_contradicts_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hint: dict[str, Any], reason: str
) -> None:
    checkpoint = tmp_path / "a.safetensors"
    write_network(checkpoint, 1)
    with pytest.raises(CheckpointError, match=f"a.safetensors {reason}"):
        read_checkpoint(checkpoint, Hints(**hint))
    assert read_checkpoint(checkpoint, Hints("test_efficientnet", 32, pre_norm=False))
    for split in ("train", "test"):
        for seed, label in enumerate(LABELS):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            (folder / "a.png").write_bytes(encode_picture(make_picture(seed), "PNG"))
    evaluate = ["--checkpoint", str(checkpoint), "--data", str(tmp_path / "data")]
    ((name, value),) = hint.items()
    flag = f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
    assert main([*evaluate, flag]) == 2
    assert reason in capsys.readouterr().err
    assert main([*evaluate, "--image-size", "32", "--single-label"]) == 0


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
