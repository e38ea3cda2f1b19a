"""Checkpoint files: ours round trip, foreign ones read, bad ones refused in one line."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.config import InputConfig, MLDecoderConfig, NetworkConfig
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


def assert_still_reads(network: Network, folder: Path) -> None:
    """The good request after each bad one."""
    path = folder / "good.safetensors"
    write_checkpoint(path, network, LABELS, {})
    assert read_checkpoint(path).label_names == LABELS


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


def test_read_network_is_in_eval_mode(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, network.train(), LABELS, {})
    network.eval()
    assert not any(module.training for module in load_checkpoint(path).modules())


def test_label_names_come_from_idx_to_class(tmp_path: Path) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = write_official(golden, tmp_path / "official.pth", "model")
    assert read_checkpoint(path).label_names == tuple(f"class {i:04d}" for i in range(10))


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_truncated_own_file_is_refused(network: Network, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    write_checkpoint(path, network, LABELS, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
    assert_still_reads(network, tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_truncated_torch_file_is_refused(network: Network, tmp_path: Path, keep: int) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = write_official(golden, tmp_path / "official.pth")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)
    assert_still_reads(network, tmp_path)


@pytest.mark.parametrize("core", ["core", "_core"])
def test_numpy_numbers_beside_the_tensors_are_read(core: str, tmp_path: Path) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = write_official(golden, tmp_path / "official.pth", "module")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "best_mAP": np.float64(91.3), "loss": np.float32(0.1)}, path)
    with zipfile.ZipFile(path) as file:
        parts = {info: file.read(info) for info in file.infolist()}
    with zipfile.ZipFile(path, "w") as file:
        for info, data in parts.items():  # numpy 1 wrote `core`, numpy 2 writes `_core`
            file.writestr(info, data.replace(b"numpy._core.", b"numpy.%s." % core.encode()))
    assert load_checkpoint(path)


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("pwned"), "pwned"))


def test_code_in_a_pickle_is_refused_and_not_run(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": _Code()}, tmp_path / "evil.pth")
    with pytest.raises(CheckpointError, match="code in a pickle is refused"):
        load_checkpoint(tmp_path / "evil.pth")
    assert not (tmp_path / "pwned").exists()
    assert_still_reads(network, tmp_path)


def test_look_alike_with_self_attention_is_refused(network: Network, tmp_path: Path) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    golden.state["decoder.layers.0.self_attn.in_proj_weight"] = golden.state[
        "decoder.layers.0.multihead_attn.in_proj_weight"
    ]
    path = write_official(golden, tmp_path / "look-alike.pth")
    with pytest.raises(CheckpointError, match="look-alike"):
        load_checkpoint(path)
    assert_still_reads(network, tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "not a dictionary"),
        ({"model": {"a": "b"}}, "no dictionary of tensors"),
        ({"fc.weight": torch.zeros(2, 3)}, "no ML-Decoder head"),
    ],
)
def test_other_content_is_refused(
    network: Network, tmp_path: Path, content: object, reason: str
) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(tmp_path / "other.pth")
    assert_still_reads(network, tmp_path)


def test_missing_backbone_name_asks_for_the_flag(network: Network, tmp_path: Path) -> None:
    golden = read_golden("timm_resnet50_80_224_b2")
    path = write_official(golden, tmp_path / "official.pth")
    with pytest.raises(CheckpointError, match="--backbone"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="no model named"):
        load_checkpoint(path, backbone="resnet5000")
    with pytest.raises(CheckpointError, match="width"):
        load_checkpoint(path, backbone="test_efficientnet")
    with pytest.raises(CheckpointError, match="7 heads"):
        load_checkpoint(path, backbone="resnet50", num_heads=7)
    assert_still_reads(network, tmp_path)


def test_a_safetensors_file_without_our_configuration_is_read_as_a_foreign_one(
    network: Network, tmp_path: Path
) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = tmp_path / "foreign.safetensors"
    save_file({key: torch.from_numpy(value) for key, value in golden.state.items()}, path)
    with torch.inference_mode():
        logits = load_checkpoint(path)(torch.from_numpy(golden.inputs[0])).numpy()
    assert abs(logits - golden.expected).max() <= golden.tolerance
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="no ML-Decoder head"):
        load_checkpoint(path)
    assert_still_reads(network, tmp_path)


def test_a_damaged_configuration_is_refused(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"config": "{}"})
    with pytest.raises(CheckpointError, match="damaged network configuration"):
        load_checkpoint(path)
    assert_still_reads(network, tmp_path)


def test_an_absent_file_is_refused(network: Network, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint file"):
        load_checkpoint(tmp_path / "absent.pth")
    assert_still_reads(network, tmp_path)
