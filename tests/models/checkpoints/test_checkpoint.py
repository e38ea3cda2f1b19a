"""Checkpoint files: ours round trip, foreign ones read, bad ones refused in one line."""

import copy
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.config import InputConfig, MLDecoderConfig, NetworkConfig
from models.heads.ml_decoder import MLDecoder
from models.network import Network
from tests.goldens import read_golden
from tests.models.heads.test_goldens import write_official

LABELS = ("cat", "dog", "müsli", "stop sign", "bus")


@pytest.fixture(scope="module")
def network() -> Network:
    """A tiny whole network with random weights."""
    torch.manual_seed(0)
    head = MLDecoderConfig(
        num_classes=5, encoder_width=256, num_groups=2, decoder_width=16, feedforward_width=8
    )
    config = NetworkConfig(
        backbone="test_efficientnet", input=InputConfig(height=64, width=96), head=head
    )
    return Network(config).eval()


@pytest.fixture(autouse=True)
def read_good_file_afterwards(network: Network, tmp_path: Path) -> Iterator[None]:
    yield
    write_checkpoint(tmp_path / "good.safetensors", network, LABELS, {})
    assert read_checkpoint(tmp_path / "good.safetensors").label_names == LABELS


def write_head(path: Path, layout: str = "bare") -> Path:
    return write_official(read_golden("mld_10_full_7x7_b1"), path, layout)


def test_own_file_round_trips(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, network, LABELS, {"recipe": "none"})
    read = read_checkpoint(path)
    assert read.config == network.config
    assert read.label_names == LABELS
    assert read.notes == {"recipe": "none"}
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        torch.testing.assert_close(read.network(images), network(images), rtol=0, atol=0)


def test_layers_that_a_network_uses_twice_are_written(network: Network, tmp_path: Path) -> None:
    twice = copy.deepcopy(network)
    assert isinstance(twice.head, MLDecoder)
    twice.head.layer.norm3 = twice.head.layer.norm2
    write_checkpoint(tmp_path / "twice.safetensors", twice, LABELS, {})
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        found = load_checkpoint(tmp_path / "twice.safetensors")(images)
        torch.testing.assert_close(found, twice(images), rtol=0, atol=0)


def test_read_network_is_in_eval_mode(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, network.train(), LABELS, {})
    network.eval()
    assert not any(module.training for module in load_checkpoint(path).modules())


def test_label_names_come_from_idx_to_class(tmp_path: Path) -> None:
    path = write_head(tmp_path / "official.pth", "model")
    assert read_checkpoint(path).label_names == tuple(f"class {i:04d}" for i in range(10))


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
@pytest.mark.parametrize("name", ["own.safetensors", "official.pth"])
def test_truncated_file_is_refused_in_one_line(
    network: Network, tmp_path: Path, name: str, keep: int
) -> None:
    write_checkpoint(tmp_path / "own.safetensors", network, LABELS, {})
    write_head(tmp_path / "official.pth")
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"^{name} is [^\n]+\Z"):
        load_checkpoint(path)


@pytest.mark.parametrize("core", ["core", "_core"])
def test_numpy_numbers_beside_the_tensors_are_read(core: str, tmp_path: Path) -> None:
    path = write_head(tmp_path / "official.pth", "module")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "best_mAP": np.float64(91.3), "loss": np.float32(0.1)}, path)
    with zipfile.ZipFile(path) as file:
        parts = {info: file.read(info) for info in file.infolist()}
    with zipfile.ZipFile(path, "w") as file:
        for info, data in parts.items():  # numpy 1 wrote `core`, numpy 2 writes `_core`
            file.writestr(info, data.replace(b"numpy._core.", b"numpy.%s." % core.encode()))
    assert load_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "not a dictionary"),
        ({"model": {"a": "b"}}, "no dictionary of tensors"),
        ({"fc.weight": torch.zeros(2, 3)}, "no head of ML-Decoder.*--backbone"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(tmp_path / "other.pth")


@pytest.mark.parametrize(
    ("hints", "reason"),
    [
        ({}, "--backbone"),
        ({"backbone": "resnet5000"}, "no model named"),
        ({"backbone": "test_efficientnet"}, "not those of test_efficientnet"),
        ({"backbone": "resnet50", "num_heads": 7}, "7 heads"),
    ],
)
def test_hint_is_asked_for_or_refused_when_the_file_lacks_its_backbones_name(
    tmp_path: Path, hints: dict[str, Any], reason: str
) -> None:
    golden = read_golden("timm_resnet50_80_224_b2")
    path = write_official(golden, tmp_path / "official.pth")
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(path, **hints)


def test_safetensors_file_is_read_as_foreign_when_it_lacks_our_configuration(
    tmp_path: Path,
) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = tmp_path / "foreign.safetensors"
    save_file({key: torch.from_numpy(value) for key, value in golden.state.items()}, path)
    with torch.inference_mode():
        logits = load_checkpoint(path)(torch.from_numpy(golden.inputs[0])).numpy()
    assert abs(logits - golden.expected).max() <= golden.tolerance


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [({}, "no head of ML-Decoder"), ({"config": "{}"}, "damaged network configuration")],
)
def test_safetensors_file_is_refused_when_it_has_no_network(
    tmp_path: Path, metadata: dict[str, str], reason: str
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(tmp_path / "a.safetensors")


def test_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint file"):
        load_checkpoint(tmp_path / "absent.pth")
