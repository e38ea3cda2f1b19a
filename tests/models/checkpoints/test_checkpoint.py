"""Checkpoint files: ours round trip, foreign ones read, others refused in one line."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.layouts.state import fill
from tests.export.tiny_network import INPUT, LABELS, make_network
from tests.models.checkpoints import assert_gives, assert_refused

IMAGES = torch.rand(2, 3, INPUT.height, INPUT.width)


@torch.inference_mode()
def test_own_file_round_trips_and_its_network_is_in_eval_mode(tmp_path: Path) -> None:
    network = make_network()
    expected = network.eval()(IMAGES)
    write_checkpoint(tmp_path / "a.safetensors", network.train(), LABELS, {"recipe": "müsli"})
    read = read_checkpoint(tmp_path / "a.safetensors")
    assert (read.take_network().config, read.label_names) == (network.config, LABELS)
    assert read.notes == {"recipe": "müsli"}
    assert not any(module.training for module in read.network.modules())
    torch.testing.assert_close(read.network(IMAGES), expected, rtol=0, atol=0)


@torch.inference_mode()
def test_layers_that_a_network_uses_twice_are_written(tmp_path: Path) -> None:
    twice = copy.deepcopy(make_network()).eval()
    twice.head.layer.norm3 = twice.head.layer.norm2
    write_checkpoint(tmp_path / "twice.safetensors", twice, LABELS, {})
    assert_gives(tmp_path / "twice.safetensors", IMAGES, twice(IMAGES))


@pytest.mark.parametrize(
    ("content", "metadata", "reason"),
    [
        ([1, 2], None, "not a dictionary"),
        ({"model": {"a": "b"}}, None, "entries that are no tensors under a usual name: model;"),
        ({"fc.weight": torch.zeros(2, 3)}, None, "no head of ML-Decoder.*--backbone"),
        ({"a": torch.zeros(1)}, {}, "no head of ML-Decoder"),
        ({"a": torch.zeros(1)}, {"config": "{}"}, "damaged network configuration"),
    ],
)
def test_file_without_a_network_is_refused(
    tmp_path: Path, content: Any, metadata: dict[str, str] | None, reason: str
) -> None:
    path = tmp_path / "other"
    torch.save(content, path) if metadata is None else save_file(content, path, metadata)
    assert_refused(path, reason)


def test_whole_numbers_in_place_of_weights_are_refused() -> None:
    network = make_network()
    state = {key: tensor.to(torch.int8) for key, tensor in network.state_dict().items()}
    with pytest.raises(CheckpointError, match="has numbers of type int8: store float32"):
        fill(network, state)
