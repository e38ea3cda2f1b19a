"""Which layers stay in float: as few as keep int8 accurate enough.

In: float32 graphs, sample photos and a measure of loss. Out: the int8 graphs. Layers are
ranked by how much noise each alone puts on the logits; the worst are kept in float, more
and more of them, until the loss is small enough. Next: `build.py`.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.graphs.graph import (
    PIXELS_TO_LOGITS,
    Chain,
    FloatArray,
    Graphs,
    PixelArray,
    open_session,
)
from export.int8.quantise import Feed, Quantiser
from export.int8.switch import LAYER, NO_LAYER
from service.bundle.manifest import GraphName

Layer = tuple[GraphName, str]
"""A layer: the graph that it is in and its name there."""

KEPT_FLOAT_STEPS = (0, 1, 2, 4, 8, 16)
"""Numbers of layers kept in float that are tried, in this order."""

RANKING_PHOTOS = 4
"""Sample photos that the layers are ranked on: each layer costs a run of them. Ranked on 32, the
default bundle's worst layers in float are worth the same. Ranges are measured on all photos."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Int8Graphs:
    """What the search found.

    Attributes:
        graphs: encoder and head in int8.
        kept_float: the layers that are in float, worst first.
        loss: what `measure_loss` says of them.
    """

    graphs: Graphs
    kept_float: tuple[Layer, ...]
    loss: float


def find_int8(
    graphs: Graphs, samples: PixelArray, measure_loss: Callable[[Graphs], float], limit: float
) -> Int8Graphs:
    """Quantises, keeping as few layers in float as the limit allows.

    Args:
        graphs: float32 graphs.
        samples: photos uint8 [n, H, W, 3] to measure the ranges of values on.
        measure_loss: loss of accuracy of int8 graphs, smaller is better.
        limit: loss to stop at.

    Returns:
        The first that holds the limit, else the one of least loss.
    """
    with tempfile.TemporaryDirectory() as folder:
        quantisers = _open_quantisers(graphs, samples, Path(folder))
        ranked: tuple[Layer, ...] = ()
        tried: list[Int8Graphs] = []
        for count in KEPT_FLOAT_STEPS:
            if count == 1:
                ranked = rank_layers(quantisers, samples[:RANKING_PHOTOS])
            kept = ranked[:count]
            _log.info("int8 with %d layers in float", len(kept))
            int8 = _quantise(quantisers, kept)
            tried.append(Int8Graphs(int8, kept, measure_loss(int8)))
            if tried[-1].loss <= limit or count > len(kept):
                break
    return min(tried, key=lambda found: found.loss)


def rank_layers(
    quantisers: Mapping[GraphName, Quantiser], samples: PixelArray
) -> tuple[Layer, ...]:
    """Orders layers by the noise on the logits where each alone is in int8, worst first."""
    encoder, head = (open_session(quantisers[name].make_switchable()) for name in PIXELS_TO_LOGITS)
    encoder_layers, head_layers = (quantisers[name].layers for name in PIXELS_TO_LOGITS)
    _log.info("int8: ranking %d layers by the noise of each", len(encoder_layers + head_layers))

    def encode(place: int) -> FloatArray:
        return np.asarray(encoder.run(["tokens"], {"images": samples, LAYER: np.array(place)})[0])

    def score(tokens: FloatArray, place: int) -> FloatArray:
        return np.asarray(head.run(["logits"], {"tokens": tokens, LAYER: np.array(place)})[0])

    tokens = encode(NO_LAYER)
    expected = score(tokens, NO_LAYER)
    noise: dict[Layer, float] = {}
    for place, layer in enumerate(encoder_layers):
        noise["encoder", layer] = signal_to_noise(expected, score(encode(place), NO_LAYER))
    for place, layer in enumerate(head_layers):
        noise["trained_head", layer] = signal_to_noise(expected, score(tokens, place))
    return tuple(sorted(noise, key=noise.__getitem__))


def signal_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns the ratio of `expected`'s power to that of the difference, in decibels."""
    signal = float(np.square(expected, dtype=np.float64).sum())
    noise = float(np.square(expected.astype(np.float64) - actual).sum())
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def variation_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns the same of what tells photos apart: each label's mean of `expected` is taken off.

    Args:
        expected: logits [n, N].
        actual: the same by other graphs.
    """
    mean = expected.mean(axis=0)
    return signal_to_noise(expected - mean, actual - mean)


def _open_quantisers(
    graphs: Graphs, samples: PixelArray, folder: Path
) -> dict[GraphName, Quantiser]:
    chain = Chain(graphs)
    photos = [photo[np.newaxis] for photo in samples]
    feeds: dict[GraphName, Iterator[Feed]] = {
        "encoder": ({"images": photo} for photo in photos),
        "trained_head": ({"tokens": chain.encode(photo)} for photo in photos),
    }
    quantisers = {}
    for name, samples_of_graph in feeds.items():
        (folder / name).mkdir()
        quantisers[name] = Quantiser(graphs[name], samples_of_graph, folder / name)
    return quantisers


def _quantise(quantisers: Mapping[GraphName, Quantiser], kept: tuple[Layer, ...]) -> Graphs:
    return {
        name: quantisers[name].quantise([layer for graph, layer in kept if graph == name])
        for name in PIXELS_TO_LOGITS
    }
