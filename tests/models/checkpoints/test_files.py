"""Checkpoints on the hub, with a folder in its place."""

import json
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from timm.layers.ml_decoder import add_ml_decoder_head

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from tests.export.tiny_network import LABELS, make_network
from tests.models.checkpoints import read_config

REFERENCE = "hf-hub:someone/tagger"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the one repository that there is."""

    def download(repository: str, name: str) -> str:
        assert repository == "someone/tagger"
        if not (tmp_path / name).is_file():
            raise EntryNotFoundError(f"404 for {name}")
        return str(tmp_path / name)

    monkeypatch.setattr("models.checkpoints.files.hf_hub_download", download)
    return tmp_path


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


def test_checkpoint_of_ours_on_the_hub_is_read(hub: Path) -> None:
    write_checkpoint(hub / "model.safetensors", make_network(), LABELS, {})
    assert read_checkpoint(REFERENCE).label_names == LABELS


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LocalEntryNotFoundError("long story"), "cannot be fetched: the hub is out of reach"),
        (OSError("long story"), "cannot be fetched"),
    ],
)
def test_unreachable_hub_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def download(*_: object) -> None:
        raise error

    monkeypatch.setattr("models.checkpoints.files.hf_hub_download", download)
    with pytest.raises(CheckpointError, match=rf"^{REFERENCE} {reason}\Z"):
        load_checkpoint(REFERENCE)


def test_repository_is_refused_without_weights_or_with_a_damaged_index(hub: Path) -> None:
    with pytest.raises(CheckpointError, match="has neither"):
        load_checkpoint(REFERENCE)
    for content in ("[]", "{", '{"pretrained_cfg": 3}', "[" * 100_000):
        (hub / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(REFERENCE)
