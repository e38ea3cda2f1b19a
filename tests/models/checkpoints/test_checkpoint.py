"""Checkpoint files: ours round trip, foreign ones read, others refused in one line."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.heads.ml_decoder import MLDecoder
from tests.export.tiny_network import INPUT, LABELS, make_network
from tests.goldens import read_golden
from tests.models.checkpoints import assert_gives
from tests.models.heads.test_goldens import write_official

IMAGES = torch.rand(2, 3, INPUT.height, INPUT.width)


@torch.inference_mode()
def test_own_file_round_trips_and_its_network_is_in_eval_mode(tmp_path: Path) -> None:
    network = make_network()
    expected = network.eval()(IMAGES)
    write_checkpoint(tmp_path / "a.safetensors", network.train(), LABELS, {"recipe": "müsli"})
    read = read_checkpoint(tmp_path / "a.safetensors")
    assert (read.config, read.label_names) == (network.config, LABELS)
    assert read.notes == {"recipe": "müsli"}
    assert not any(module.training for module in read.network.modules())
    torch.testing.assert_close(read.network(IMAGES), expected, rtol=0, atol=0)


@torch.inference_mode()
def test_layers_that_a_network_uses_twice_are_written(tmp_path: Path) -> None:
    twice = copy.deepcopy(make_network()).eval()
    assert isinstance(twice.head, MLDecoder)
    twice.head.layer.norm3 = twice.head.layer.norm2
    write_checkpoint(tmp_path / "twice.safetensors", twice, LABELS, {})
    assert_gives(tmp_path / "twice.safetensors", IMAGES, twice(IMAGES))


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
    ("metadata", "reason"),
    [({}, "no head of ML-Decoder"), ({"config": "{}"}, "damaged network configuration")],
)
def test_safetensors_file_is_refused_when_it_has_no_network(
    tmp_path: Path, metadata: dict[str, str], reason: str
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(tmp_path / "a.safetensors")


def test_safetensors_file_is_read_as_foreign_when_it_lacks_our_configuration(
    tmp_path: Path,
) -> None:
    golden = read_golden("mld_10_full_7x7_b1")
    path = tmp_path / "foreign.safetensors"
    save_file({key: torch.from_numpy(value) for key, value in golden.state.items()}, path)
    with torch.inference_mode():
        logits = load_checkpoint(path)(torch.from_numpy(golden.inputs[0])).numpy()
    assert abs(logits - golden.expected).max() <= golden.tolerance


def test_label_names_and_numpy_numbers_next_to_the_tensors_are_read(tmp_path: Path) -> None:
    path = write_official(read_golden("mld_10_full_7x7_b1"), tmp_path / "official.pth", "model")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "best_mAP": np.float64(91.3), "loss": np.float32(0.1)}, path)
    assert read_checkpoint(path).label_names == tuple(f"class {i:04d}" for i in range(10))
