from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.graphs.graph import Graphs, PixelArray
from export.graphs.optimise import optimise
from export.graphs.trace import trace_encoder, trace_head
from export.int8.search import (
    KEPT_FLOAT_STEPS,
    find_int8,
    signal_to_noise,
    variation_to_noise,
)
from models.config import GapConfig, InputConfig
from models.heads.gap import Gap

_SPEC = InputConfig(height=8, width=8)


class _OneBadLayer(nn.Module):
    """Four convolutions; between the second and the third one channel dwarfs the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 1) for i in range(4))
        giant = torch.ones(8)
        giant[0] = 3000.0
        second, third = self.layers[1], self.layers[2]
        assert isinstance(second, nn.Conv2d)
        assert isinstance(third, nn.Conv2d)
        second.weight.data *= giant.view(8, 1, 1, 1)
        third.weight.data /= giant.view(1, 8, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = layer(images)
        return images.flatten(2).transpose(1, 2)


@pytest.fixture(scope="module")
def bad_graphs() -> Graphs:
    head = Gap(GapConfig(num_classes=4, encoder_width=8))
    return {
        "encoder": optimise(trace_encoder(_OneBadLayer(), _SPEC)),
        "trained_head": optimise(trace_head(head, 64, 8)),
    }


@pytest.fixture(scope="module")
def samples() -> PixelArray:
    return np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)


def _count_float(graphs: Graphs) -> int:
    stored = {tensor.name for tensor in graphs["encoder"].graph.initializer}
    nodes = graphs["encoder"].graph.node
    return sum(1 for node in nodes if node.op_type == "Conv" and node.input[1] in stored)


def test_all_layers_are_in_int8_where_that_is_accurate_enough(
    bad_graphs: Graphs, samples: PixelArray
) -> None:
    found = find_int8(bad_graphs, samples, lambda graphs: 0.1 * _count_float(graphs), 0.2)
    assert found.kept_float == ()
    assert found.loss == 0.0


def test_layers_at_the_giant_channel_are_kept_in_float_first(
    bad_graphs: Graphs, samples: PixelArray
) -> None:
    convolutions = [n.name for n in bad_graphs["encoder"].graph.node if n.op_type == "Conv"]
    found = find_int8(bad_graphs, samples, lambda graphs: 2.0 - _count_float(graphs), 0.0)
    assert found.loss == 0.0
    assert {layer for _, layer in found.kept_float} == set(convolutions[1:3])


def test_where_nothing_holds_the_limit_the_least_loss_is_taken(
    bad_graphs: Graphs, samples: PixelArray
) -> None:
    tried: list[int] = []

    def measure_loss(graphs: Graphs) -> float:
        tried.append(_count_float(graphs))
        return 5.0 if tried[-1] != 1 else 4.0

    found = find_int8(bad_graphs, samples, measure_loss, 1.0)
    assert (found.loss, _count_float(found.graphs)) == (4.0, 1)
    assert len(tried) <= len(KEPT_FLOAT_STEPS)


def test_signal_to_noise_is_in_decibels() -> None:
    signal = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    assert signal_to_noise(signal, signal * np.float32(1.1)) == pytest.approx(20, abs=1e-3)
    assert signal_to_noise(signal, signal) == np.inf


def test_what_all_photos_have_in_common_hides_no_noise() -> None:
    logits = np.array([[-8, 5], [-7, 4], [-9, 6]], np.float32)
    assert (
        variation_to_noise(logits, logits + np.float32(1))
        < 0
        < signal_to_noise(logits, logits + np.float32(1))
    )
    assert variation_to_noise(logits, logits) == np.inf
