"""Which further layers int8 leaves in float: as few as keep its logits close to float32's.

Layers are ranked by the noise on the logits if only one is in 8 bits: ONNX Runtime's own measures
do not find these layers (ARCHITECTURE.md has the figures).
"""

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.graphs.graph import EncoderAndHead, FloatArray, Graphs
from export.int8.quantise import Feed, Quantiser
from service.bundle.manifest import GraphName
from service.images.decode import PixelArray

Layer = tuple[GraphName, str]  # a graph and the name of a node in it

KEPT_FLOAT_STEPS = (0, 1, 2, 4, 8, 16)  # numbers of layers in float to try, in this order

# Decibels by which the logits' variation between photos exceeds int8's deviation from fp32. At
# this value int8 becomes the CPU's default and the search stops. The default bundle's mAP of 74
# loses about 0.4 points at 20 dB, 1.2 at 14 dB, 3 at 10 dB. A higher value costs speed: two of its
# layers in float give 24.4 instead of 22.6 dB, in 16 % more time (6.0 instead of 5.2 ms on a core).
# Measured mAP does not decide: with 1,000 positives its loss has a standard deviation of 0.25
# points, and the best of several candidates is the luckiest.
MIN_AGREEMENT = 20.0

# The ranking runs these once per layer. With a ranking on 32 photos, the default bundle's worst
# layers in float gain the same.
RANKING_PHOTOS = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Int8Graphs:
    """Encoder, and trained head if there is one, in int8."""

    graphs: Graphs
    kept_float: tuple[Layer, ...]  # worst first
    agreement: float  # with fp32, in decibels


def find_int8(
    graphs: Graphs,
    samples: PixelArray,
    measure_agreement: Callable[[Graphs], float],
    embeddings: FloatArray | None = None,
) -> Int8Graphs:
    """Quantises with the fewest layers in float for `MIN_AGREEMENT`, else with the best number.

    Ranges of values are measured on `samples`; `measure_agreement` compares with fp32 in decibels.
    Without a trained head, logits are those of labels with these `embeddings` [L, E].
    """
    with tempfile.TemporaryDirectory() as folder:
        quantisers = _open_quantisers(graphs, samples, Path(folder), embeddings)
        noisiest: tuple[Layer, ...] = ()
        tried: list[Int8Graphs] = []
        for count in KEPT_FLOAT_STEPS:
            if count == 1:
                noisiest = rank_layers(quantisers, samples[:RANKING_PHOTOS], graphs, embeddings)
            kept = noisiest[:count]
            int8 = {
                name: quantiser.quantise([layer for graph, layer in kept if graph == name])
                for name, quantiser in quantisers.items()
            }
            tried.append(Int8Graphs(int8, kept, measure_agreement(int8)))
            logger.info(
                "int8 with %d layers in float: logits vary %.1f dB above their deviation from fp32",
                *(len(kept), tried[-1].agreement),
            )
            if tried[-1].agreement >= MIN_AGREEMENT or count > len(kept):
                break
    return max(tried, key=lambda result: result.agreement)


def rank_layers(
    quantisers: Mapping[GraphName, Quantiser],
    samples: PixelArray,
    graphs: Graphs,
    embeddings: FloatArray | None = None,
) -> tuple[Layer, ...]:
    """Orders layers by the noise on the logits if only that layer is in int8, worst first."""
    exact = {**graphs, **{name: quantiser.exact for name, quantiser in quantisers.items()}}
    expected = EncoderAndHead(exact, embeddings).predict(samples)
    noise: dict[Layer, float] = {}
    for name, quantiser in quantisers.items():
        for layer in quantiser.layers:
            model = EncoderAndHead({**exact, name: quantiser.quantise_only(layer)}, embeddings)
            noise[name, layer] = signal_to_noise(expected, model.predict(samples))
    return tuple(sorted(noise, key=noise.__getitem__))


def signal_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns `expected`'s power over the difference's, in decibels; -inf if it is not finite."""
    signal = float(np.square(expected, dtype=np.float64).sum())
    noise = float(np.square(expected.astype(np.float64) - actual).sum())
    if noise == 0.0:
        return math.inf
    measured = signal > 0.0 and math.isfinite(noise)
    return 10 * math.log10(signal / noise) if measured else -math.inf


def variation_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns `signal_to_noise` of how logits [n, N] vary between photos; -inf for a single photo.

    Each label's mean of `expected` is subtracted from both: it says nothing about a photo.
    """
    mean = expected.mean(axis=0)
    return signal_to_noise(expected - mean, actual - mean)


def _open_quantisers(
    graphs: Graphs, samples: PixelArray, folder: Path, embeddings: FloatArray | None
) -> dict[GraphName, Quantiser]:
    exact = EncoderAndHead(graphs, embeddings)
    photos = [photo[np.newaxis] for photo in samples]
    feeds: dict[GraphName, Iterator[Feed]] = {
        "encoder": ({"images": photo} for photo in photos),
        "trained_head": ({"tokens": exact.encode(photo)} for photo in photos),
    }
    return {
        name: Quantiser(graphs[name], samples_of_graph, folder / name)
        for name, samples_of_graph in feeds.items()
        if name in graphs
    }
