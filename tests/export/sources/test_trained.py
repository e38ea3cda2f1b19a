from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from export.sources.trained import UnusableCheckpointError, read_source
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.checkpoints.layouts.state import unwrap
from models.network import Network
from tests.export.tiny_network import INPUT, LABELS


def test_own_checkpoint_tells_everything(checkpoint: Path) -> None:
    source = read_source(checkpoint)
    assert source.label_names == LABELS
    assert source.training_data == "coloured noise"
    assert source.sha256 == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert not source.network.training
    contract = source.contract
    assert (contract.height, contract.width) == (INPUT.height, INPUT.width)
    assert (contract.resize_mode, contract.interpolation) == ("squash", "bilinear")


def test_label_names_may_come_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    # As an editor on Windows writes it.
    names.write_bytes("\ufeffsea\r\n\r\n  meadow \r\nrose\r\n".encode())
    source = read_source(checkpoint, label_names=names)
    assert source.label_names == ("sea", "meadow", "rose")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a\nb\n", "2 label names for 3 logits"),
        (b"a\nb\nb\n", "there twice"),
        (b"\xff\xfe\n", "cannot be read"),
        ("a\nb\u2028b\nc".encode(), r"label name 'b\\u2028b': .*no control characters"),
        (b"a\nb\rb\nc", r"label name 'b\\rb': .*no control characters"),
        (b"a\nb\n" + b"c" * 201, "at most 200 characters"),
    ],
)
def test_unfit_label_names_are_refused(
    checkpoint: Path, tmp_path: Path, content: bytes, reason: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(content)
    with pytest.raises(UnusableCheckpointError, match=reason):
        read_source(checkpoint, label_names=names)
    names.write_bytes(b"a\nb\n" + b"c" * 200)
    assert read_source(checkpoint, label_names=names).label_names[1:] == (
        "b",
        "c" * 200,
    )


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "x" * 201])
def test_unfit_names_in_a_checkpoint_are_refused(
    network: Network, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "own.safetensors"
    write_checkpoint(path, network, (*LABELS[:2], name), {})
    with pytest.raises(UnusableCheckpointError, match="label name") as refused:
        read_source(path)
    assert "\n" not in str(refused.value)
    write_checkpoint(path, network, LABELS, {})
    assert read_source(path).label_names == LABELS


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
def test_names_of_a_foreign_checkpoint_stand_in_the_order_of_their_numbers(
    names: dict[object, object], expected: tuple[str, ...] | None
) -> None:
    # Without names the export asks for --label-names.
    state = {"weight": torch.zeros(1)}
    assert unwrap({"model": state, "idx_to_class": names}).described.label_names == expected


@pytest.mark.parametrize(
    ("hints", "reason"),
    [
        ({"num_heads": 8}, "has 4 attention heads, not 8"),
        ({"pre_norm": True}, "has its norms behind the attention"),
    ],
)
def test_hints_that_contradict_the_checkpoint_are_refused(
    checkpoint: Path, hints: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_source(checkpoint, Hints(**hints))
    assert read_source(checkpoint, Hints(num_heads=4, pre_norm=False))


def test_another_backbone_than_the_files_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="test_efficientnet, not resnet50"):
        read_source(checkpoint, Hints(backbone="resnet50"))
    assert read_source(checkpoint, Hints(backbone="test_efficientnet"))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint file"):
        read_source(tmp_path / "gone.pth")
