"""Checkpoints on the hub, with a folder in its place."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import timm
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from timm.layers.ml_decoder import add_ml_decoder_head

from export.__main__ import main as export
from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from service.bundle.reader import load_bundle
from tests.export.tiny_network import LABELS, make_network
from tests.models.checkpoints import read_config

REFERENCE = "hf-hub:someone/tagger"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the one repository that there is."""
    folder = tmp_path / "hub"
    folder.mkdir()

    def download(repository: str, name: str) -> str:
        assert repository == "someone/tagger"
        if not (folder / name).is_file():
            raise EntryNotFoundError(f"404 for {name}")
        return str(folder / name)

    monkeypatch.setattr("models.checkpoints.files.hf_hub_download", download)
    return folder


def write_timm_repository(hub: Path) -> None:
    model = add_ml_decoder_head(timm.create_model("test_resnet", num_classes=3))
    torch.save(model.state_dict(), hub / "pytorch_model.bin")
    (hub / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))


def test_repository_has_the_architecture_the_preparation_and_the_label_names(hub: Path) -> None:
    write_timm_repository(hub)
    assert read_config(REFERENCE).backbone == "test_resnet"
    prepared = {"input_size": [3, 96, 128], "mean": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
    config = {"architecture": "test_resnet", "pretrained_cfg": prepared}
    config["label_names"] = ["sea", "meadow", "rose"]
    (hub / "config.json").write_text(json.dumps(config))
    spec = read_config(REFERENCE).input
    assert (spec.height, spec.width, spec.interpolation) == (96, 128, "bilinear")
    assert spec.mean == (0.5, 0.5, 0.5)
    assert read_checkpoint(REFERENCE).label_names == ("sea", "meadow", "rose")
    hinted = read_config(REFERENCE, Hints(image_size=64)).input
    assert (hinted.height, hinted.width) == (64, 64)


def test_checkpoint_of_ours_on_the_hub_is_exported(hub: Path, tmp_path: Path) -> None:
    write_checkpoint(hub / "model.safetensors", make_network(), LABELS, {})
    out = tmp_path / "model"
    assert export(["--checkpoint", REFERENCE, "--out", str(out), "--precision", "fp32"]) == 0
    assert load_bundle(out).precisions() == ("fp32",)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("long story"), "the hub is out of reach"),
        (OSError("long story"), "cannot be fetched"),
    ],
)
def test_unreachable_hub_is_one_line(
    hub: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
) -> None:
    write_timm_repository(hub)
    with monkeypatch.context() as patch:
        download = Mock(side_effect=error)
        patch.setattr("models.checkpoints.files.hf_hub_download", download)
        assert export(["--checkpoint", REFERENCE, "--out", "out"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {REFERENCE} cannot be fetched")
        assert reason in line
    assert load_checkpoint(REFERENCE)


def test_repository_is_refused_without_weights_or_with_a_damaged_index(hub: Path) -> None:
    with pytest.raises(CheckpointError, match="has neither"):
        load_checkpoint(REFERENCE)
    (hub / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(REFERENCE)
    write_timm_repository(hub)
    assert load_checkpoint(REFERENCE)
