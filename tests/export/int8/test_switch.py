from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.graphs.graph import Chain, FloatArray, Graphs, PixelArray, open_session
from export.int8 import quantise
from export.int8.quantise import Quantiser
from export.int8.search import rank_layers, signal_to_noise
from export.int8.switch import LAYER, NO_LAYER


@pytest.fixture(scope="module")
def quantiser(
    graphs: Graphs, pixels: PixelArray, tmp_path_factory: pytest.TempPathFactory
) -> Quantiser:
    feeds = ({"images": picture[np.newaxis]} for picture in pixels)
    return Quantiser(graphs["encoder"], feeds, tmp_path_factory.mktemp("int8"))


@pytest.fixture(scope="module")
def tokens(quantiser: Quantiser, pixels: PixelArray) -> dict[int, FloatArray]:
    """What the encoder gives with each layer in 8 bits, and with none."""
    session = open_session(quantiser.make_switchable())
    places = range(NO_LAYER, len(quantiser.layers))
    feeds = {place: {"images": pixels, LAYER: np.array(place)} for place in places}
    return {place: np.asarray(session.run(["tokens"], feeds[place])[0]) for place in places}


def test_with_no_layer_chosen_nothing_is_rounded(
    tokens: dict[int, FloatArray], graphs: Graphs, pixels: PixelArray
) -> None:
    expected = Chain(graphs).encode(pixels)
    assert signal_to_noise(expected, tokens[NO_LAYER]) > 90


def test_each_layer_alone_is_rounded_when_it_is_chosen(
    tokens: dict[int, FloatArray], quantiser: Quantiser, graphs: Graphs, pixels: PixelArray
) -> None:
    exact = tokens[NO_LAYER]
    noises = [signal_to_noise(exact, tokens[i]) for i in range(len(quantiser.layers))]
    assert len(set(noises)) == len(quantiser.layers)
    assert max(noises) < 85
    all_in_int8 = Chain({**graphs, "encoder": quantiser.quantise()}).encode(pixels)
    assert min(noises) > signal_to_noise(exact, all_in_int8)


def test_graphs_are_quantised_once_however_many_layers_are_ranked(
    quantiser: Quantiser,
    graphs: Graphs,
    pixels: PixelArray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = Chain(graphs).encode(pixels[:1])
    head = Quantiser(graphs["trained_head"], [{"tokens": tokens}], tmp_path)
    quantised = []
    quantize_static = quantise.quantize_static

    def count(*arguments: Any, **options: Any) -> None:
        quantised.append(arguments)
        quantize_static(*arguments, **options)

    monkeypatch.setattr(quantise, "quantize_static", count)
    ranked = rank_layers({"encoder": quantiser, "trained_head": head}, pixels[:2])
    layers = {("encoder", layer) for layer in quantiser.layers}
    assert set(ranked) == layers | {("trained_head", layer) for layer in head.layers}
    assert len(quantised) == 2
