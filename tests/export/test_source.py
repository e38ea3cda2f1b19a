from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from export.errors import UnusableCheckpointError
from export.source import SourceHints, read_source
from models.layouts import CheckpointError
from tests.export.tiny_network import INPUT, LABELS


def test_own_checkpoint_tells_everything(checkpoint: Path) -> None:
    source = read_source(SourceHints(checkpoint))
    assert source.label_names == LABELS
    assert source.training_data == "coloured noise"
    assert source.sha256 == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert not source.network.training
    contract = source.contract
    assert (contract.height, contract.width) == (INPUT.height, INPUT.width)
    assert (contract.resize_mode, contract.interpolation) == ("squash", "bilinear")


def test_label_names_may_come_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("sea\n\n  meadow \nrose\n", encoding="utf-8")
    source = read_source(SourceHints(checkpoint, label_names=names))
    assert source.label_names == ("sea", "meadow", "rose")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a\nb\n", "2 label names for 3 logits"),
        (b"a\nb\nb\n", "there twice"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_unfit_label_names_are_refused(
    checkpoint: Path, tmp_path: Path, content: bytes, reason: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(content)
    with pytest.raises(UnusableCheckpointError, match=reason):
        read_source(SourceHints(checkpoint, label_names=names))
    assert read_source(SourceHints(checkpoint)).label_names == LABELS


def test_another_backbone_than_the_files_is_refused(checkpoint: Path) -> None:
    with pytest.raises(UnusableCheckpointError, match="test_efficientnet, not resnet50"):
        read_source(SourceHints(checkpoint, backbone="resnet50"))
    assert read_source(SourceHints(checkpoint, backbone="test_efficientnet"))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint file"):
        read_source(SourceHints(tmp_path / "gone.pth"))
