"""Which layers int8 leaves in float: as few as keep its logits close to float32's.

Layers are ranked by the noise that each alone in 8 bits puts on the logits. ONNX Runtime's own
measures of quantisation loss (`qdq_loss_debug`) are local to a tensor and do not find these
layers. On the default bundle and 500 photos, with 0, 4 and 16 layers in float, the agreement is

    this ranking                             22.5  24.8  29.7 dB
    worst of input, output and weight error  22.5  22.6  22.6
    growth of the error between the models   22.5  22.5  23.2
"""

from __future__ import annotations

import copy
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, compose, helper

from export.graphs.graph import PIXELS_TO_LOGITS, EncoderAndHead, FloatArray, Graphs, open_session
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

LAYER = "layer"  # input int64: index of the layer in 8 bits, or `NO_LAYER`
NO_LAYER = -1
_TWIN = "int8."
_ROUNDERS = ("QuantizeLinear", "DequantizeLinear")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Int8Graphs:
    """Encoder and head in int8."""

    graphs: Graphs
    kept_float: tuple[Layer, ...]  # worst first
    agreement: float  # with fp32, in decibels


def find_int8(
    graphs: Graphs, samples: PixelArray, measure_agreement: Callable[[Graphs], float]
) -> Int8Graphs:
    """Quantises with the fewest layers in float for `MIN_AGREEMENT`, else with the best number.

    Ranges of values are measured on `samples`; `measure_agreement` compares with fp32 in decibels.
    """
    with tempfile.TemporaryDirectory() as folder:
        quantisers = _open_quantisers(graphs, samples, Path(folder))
        ranked: tuple[Layer, ...] = ()
        tried: list[Int8Graphs] = []
        for count in KEPT_FLOAT_STEPS:
            if count == 1:
                ranked = rank_layers(quantisers, samples[:RANKING_PHOTOS])
            kept = ranked[:count]
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
    return max(tried, key=lambda found: found.agreement)


def rank_layers(
    quantisers: Mapping[GraphName, Quantiser], samples: PixelArray
) -> tuple[Layer, ...]:
    """Orders layers by the noise on the logits if only that layer is in int8, worst first."""
    encoder, head = (
        open_session(switch_layers(q.read_float(), q.round_layers(), q.layers))
        for q in (quantisers[name] for name in PIXELS_TO_LOGITS)
    )

    def encode(place: int) -> FloatArray:
        return np.asarray(encoder.run(["tokens"], {"images": samples, LAYER: np.array(place)})[0])

    def score(tokens: FloatArray, place: int) -> FloatArray:
        return np.asarray(head.run(["logits"], {"tokens": tokens, LAYER: np.array(place)})[0])

    tokens = encode(NO_LAYER)
    expected = score(tokens, NO_LAYER)
    noise: dict[Layer, float] = {}
    for place, layer in enumerate(quantisers["encoder"].layers):
        noise["encoder", layer] = signal_to_noise(expected, score(encode(place), NO_LAYER))
    for place, layer in enumerate(quantisers["trained_head"].layers):
        noise["trained_head", layer] = signal_to_noise(expected, score(tokens, place))
    return tuple(sorted(noise, key=noise.__getitem__))


def signal_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns the ratio of `expected`'s power to that of the difference, in decibels.

    It is -inf if a value is not finite, or if `expected` is 0 and the other is not.
    """
    signal = float(np.square(expected, dtype=np.float64).sum())
    noise = float(np.square(expected.astype(np.float64) - actual).sum())
    if noise == 0.0:
        return math.inf
    measured = signal > 0.0 and math.isfinite(noise)
    return 10 * math.log10(signal / noise) if measured else -math.inf


def variation_to_noise(expected: FloatArray, actual: FloatArray) -> float:
    """Returns the same for logits [n, N] after subtracting each label's expected mean.

    A single photo has no variation: the result is -inf, so that int8 is not the default.
    """
    mean = expected.mean(axis=0)
    return signal_to_noise(expected - mean, actual - mean)


def _open_quantisers(
    graphs: Graphs, samples: PixelArray, folder: Path
) -> dict[GraphName, Quantiser]:
    chain = EncoderAndHead(graphs)
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


def switch_layers(
    model: onnx.ModelProto, int8: onnx.ModelProto, layers: Sequence[str]
) -> onnx.ModelProto:
    """Returns the float32 graph with one more input, `LAYER`, so that one session ranks all layers.

    The input, the weights and the output of the chosen layer are rounded as in the int8 graph.
    """
    rounded = compose.add_prefix(int8, _TWIN, rename_inputs=False)
    twins = _find_twins(rounded)
    stored = {tensor.name: tensor for tensor in rounded.graph.initializer}
    switched = copy.deepcopy(model)
    del switched.graph.node[:]
    for node in model.graph.node:
        if node.name in layers:
            place = layers.index(node.name)
            switched.graph.node.extend(_switch(node, twins[node.name], stored, place))
        else:
            switched.graph.node.append(node)
    switched.graph.input.append(helper.make_tensor_value_info(LAYER, TensorProto.INT64, []))
    return switched


def _find_twins(rounded: onnx.ModelProto) -> dict[str, list[NodeProto]]:
    """Returns the nodes of each layer in int8; they read values of the float graph."""
    makers = {name: node for node in rounded.graph.node for name in node.output}
    rounders = {n.input[0]: n for n in rounded.graph.node if n.op_type in _ROUNDERS}
    twins = {}
    for node in rounded.graph.node:
        inputs = [makers[name] for name in node.input if name in makers]
        quantised = []
        for made in inputs:
            if made.input[0] in makers:
                quantise = copy.deepcopy(makers[made.input[0]])
                quantise.input[0] = quantise.input[0].removeprefix(_TWIN)
                quantised.append(quantise)
        twin = [*quantised, *inputs, node]
        while twin[-1].output[0] in rounders:
            twin.append(rounders[twin[-1].output[0]])
        twins[node.name.removeprefix(_TWIN)] = twin
    return twins


def _switch(
    node: NodeProto, twin: Sequence[NodeProto], stored: Mapping[str, TensorProto], place: int
) -> list[NodeProto]:
    exact = copy.deepcopy(node)
    exact.output[0] = f"float.{node.output[0]}"
    chosen = f"{node.name}.chosen"
    # In the branch, because ONNX Runtime's exact kernels need constants of the same graph.
    constants = [stored[name] for name in {n for t in twin for n in t.input} if name in stored]
    branches = {
        branch: helper.make_graph(
            nodes,
            branch,
            [],
            [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
            weights,
        )
        for branch, nodes, weights in (
            ("then_branch", twin, constants),
            ("else_branch", [exact], []),
        )
    }
    return [
        helper.make_node("Constant", [], [f"{node.name}.place"], value_int=place),
        helper.make_node("Equal", [LAYER, f"{node.name}.place"], [chosen]),
        helper.make_node("If", [chosen], list(node.output), **branches),
    ]
