"""Hints fit a checkpoint, or are refused; names are put in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import CheckpointError, Hints, read_names
from models.evaluate import main
from tests.models.test_average import LABELS, write_network
from tests.support.photos import encode_picture, make_picture


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_network(path, 1)
    return path


CONTRADICTIONS = [
    ({"backbone": "resnet50"}, "was made with test_efficientnet, not resnet50"),
    ({"image_size": 128}, "was made for 32 x 32 pixels, not 128"),
    ({"num_heads": 3}, "has no attention heads, not 3"),
    ({"pre_norm": True}, "has its norms behind the attention"),
]


@pytest.mark.parametrize(("said", "reason"), CONTRADICTIONS)
def test_hint_is_named_when_it_contradicts_the_file(
    checkpoint: Path, said: dict[str, object], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=f"a.safetensors {reason}"):
        read_checkpoint(checkpoint, Hints(**said))  # type: ignore[arg-type]
    assert read_checkpoint(checkpoint, Hints("test_efficientnet", 32, pre_norm=False))


@pytest.mark.parametrize(("said", "reason"), CONTRADICTIONS)
def test_evaluation_refuses_a_hint_that_contradicts_the_file(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    said: dict[str, object],
    reason: str,
) -> None:
    for split in ("train", "test"):
        for seed, label in enumerate(LABELS):
            folder = tmp_path / "data" / split / label
            folder.mkdir(parents=True)
            (folder / "a.png").write_bytes(encode_picture(make_picture(seed), "PNG"))
    command = ["--checkpoint", str(checkpoint), "--data", str(tmp_path / "data")]
    flags = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in said.items()
    ]
    assert main([*command, *flags]) == 2
    assert reason in capsys.readouterr().err
    assert main([*command, "--image-size", "32", "--single-label"]) == 0


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
