from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from export.graphs.graph import EncoderAndHead, Graphs
from export.graphs.optimise import optimise
from export.graphs.trace import trace_encoder, trace_heads
from export.int8.quantise import Quantiser
from export.int8.search import (
    KEPT_FLOAT_STEPS,
    MIN_AGREEMENT,
    find_int8,
    rank_layers,
    signal_to_noise,
    variation_to_noise,
)
from models.config import GapConfig, InputConfig
from models.heads.baselines import Gap
from service.images.decode import PixelArray
from tests.export.int8.test_quantise import float_layers

_SPEC = InputConfig(height=8, width=8)


@pytest.fixture(scope="module")
def bad_graphs() -> Graphs:
    """Four convolutions; between the second and the third one channel dwarfs the others."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(8 if i else 3, 8, 1) for i in range(4)]
    giant = torch.ones(8)
    giant[0] = 3000.0
    layers[1].weight.data *= giant.view(8, 1, 1, 1)
    layers[2].weight.data /= giant.view(1, 8, 1, 1)
    encoder = trace_encoder(nn.Sequential(*layers, nn.Flatten(2)), _SPEC)
    head = Gap(GapConfig(num_classes=4, encoder_width=64))
    return {"encoder": optimise(encoder), **trace_heads(head, 8, 64)}


@pytest.fixture(scope="module")
def samples() -> PixelArray:
    return np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("measure", "agreement", "kept"),
    [
        (lambda count: MIN_AGREEMENT - count, MIN_AGREEMENT, 0),
        (lambda count: MIN_AGREEMENT - 2 + count, MIN_AGREEMENT, 2),
        (lambda count: 6.0 if count == 1 else 5.0, 6.0, 1),  # the best, if none is enough
        (lambda count: 3.0 if count else -np.inf, 3.0, 1),
    ],
)
def test_search_keeps_the_fewest_layers_in_float_those_at_the_giant_channel_first(
    bad_graphs: Graphs,
    samples: PixelArray,
    measure: Callable[[int], float],
    agreement: float,
    kept: int,
) -> None:
    tried: list[int] = []

    def measure_agreement(graphs: Graphs) -> float:
        tried.append(len(float_layers(graphs["encoder"])))
        return measure(tried[-1])

    giant = [n.name for n in bad_graphs["encoder"].graph.node if n.op_type == "Conv"][1:3]
    int8 = find_int8(bad_graphs, samples, measure_agreement)
    assert (int8.agreement, len(float_layers(int8.graphs["encoder"]))) == (agreement, kept)
    assert {layer for _, layer in int8.kept_float} <= set(giant)
    assert len(tried) <= len(KEPT_FLOAT_STEPS)


def test_signal_to_noise_is_in_decibels() -> None:
    signal = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    assert signal_to_noise(signal, signal * np.float32(1.1)) == pytest.approx(20, abs=1e-3)
    assert signal_to_noise(signal, signal) == np.inf


def test_variation_to_noise_ignores_what_all_photos_share() -> None:
    logits = np.array([[-8, 5], [-7, 4], [-9, 6]], np.float32)
    moved = logits + np.float32(1)
    assert variation_to_noise(logits, moved) < 0 < signal_to_noise(logits, moved)
    assert variation_to_noise(logits, logits) == np.inf


@pytest.mark.parametrize(
    ("logits", "change"),
    [
        ([[-8, 5]], 0.1),  # one photo
        ([[-8, 5], [-8, 5]], 0.1),  # photos that are alike
        ([[-8, 5], [-7, 4]], np.nan),
        ([[-8, 5], [-7, 4]], np.inf),
    ],
)
def test_agreement_is_least_when_photos_or_int8_show_nothing(
    logits: list[list[int]], change: float
) -> None:
    expected = np.array(logits, np.float32)
    assert variation_to_noise(expected, expected + np.float32(change)) == -np.inf


def test_one_layer_in_int8_adds_less_noise_than_all(
    quantiser: Quantiser, graphs: Graphs, pixels: PixelArray
) -> None:
    exact = EncoderAndHead(graphs).encode(pixels)

    def measure(model: onnx.ModelProto) -> float:
        return signal_to_noise(exact, EncoderAndHead({**graphs, "encoder": model}).encode(pixels))

    assert measure(quantiser.exact) > 90
    noises = [measure(quantiser.quantise_only(layer)) for layer in quantiser.layers]
    assert len(set(noises)) == len(quantiser.layers)
    assert max(noises) < 85
    assert min(noises) > measure(quantiser.quantise())


def test_ranking_has_every_layer_of_both_graphs(
    quantiser: Quantiser, head_quantiser: Quantiser, pixels: PixelArray
) -> None:
    ranked = rank_layers({"encoder": quantiser, "trained_head": head_quantiser}, pixels[:2], {})
    layers = {("encoder", layer) for layer in quantiser.layers}
    assert set(ranked) == layers | {("trained_head", layer) for layer in head_quantiser.layers}
