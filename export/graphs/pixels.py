"""Folds normalisation into the first convolution: less arithmetic, the same function."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers.onnx_model import OnnxModel

from export.graphs.graph import weighted_layers

# ONNX Runtime has a faster int8 convolution for multiples of four channels, which halves the time
# of a stem. For larger windows, such as a ViT's patches, a fourth channel costs more than it saves.
_LARGEST_WIDENED = 7
# From a first layer's input to transposed pixels, with a mean subtracted or without: operators, and
# the places of the inputs that lead there.
_TO_PIXELS = [(["Sub", "Cast", "Transpose"], [0, 0, 0]), (["Cast", "Transpose"], [0, 0])]


def fold_scale(model: onnx.ModelProto) -> None:
    """Moves the scale of the pixels into the first convolution's weights, in place.

    `(pixels - mean) * scale` becomes `pixels - mean`. The mean stays: the convolution pads with
    zeros after it. Encoders without a scale right before a convolution are left unchanged.
    """
    graph, convolution = OnnxModel(model), _first_convolution(model)
    scaling = convolution and graph.match_parent(convolution, "Mul", 0)
    if convolution is None or scaling is None:
        return
    scale, weights = (graph.get_constant_value(n.input[1]) for n in (scaling, convolution))
    if scale is None or weights is None or weights.shape[1] != 3:
        return
    if scale.shape not in {(3, 1, 1), (1, 3, 1, 1), (1,), ()}:
        return
    scaled = weights.astype(np.float64) * scale.astype(np.float64)
    _put(graph, convolution, 1, scaled.astype(np.float32))
    convolution.input[0] = scaling.input[0]
    graph.prune_graph()


def feed_pixels(model: onnx.ModelProto) -> None:
    """Connects the first convolution of an int8 encoder to the pixels, in place.

    With the mean as zero point, a quantised `pixel - mean` is the pixel itself; the mean's
    fraction goes to the bias. This needs one mean for all channels. A fourth channel, of zero
    weight, allows ONNX Runtime's faster convolution. A first layer in float or of another kind is
    left unchanged.
    """
    graph, convolution = OnnxModel(model), _first_convolution(model)
    if convolution is None:
        return
    path = graph.match_parent_path(convolution, ["DequantizeLinear", "QuantizeLinear"], [0, 0])
    weights, bias = (graph.get_parent(convolution, place) for place in (1, 2))
    if path is None or weights is None or bias is None:
        return
    dequantise, quantise = path
    _drop_mean(graph, quantise, dequantise, weights, bias)
    _widen(graph, dequantise, weights)
    graph.prune_graph()
    del model.graph.value_info[:]  # shapes that are out of date


def _drop_mean(
    graph: OnnxModel,
    quantise: NodeProto,
    dequantise: NodeProto,
    weights: NodeProto,
    bias: NodeProto,
) -> None:
    _, path, _ = graph.match_parent_paths(quantise, _TO_PIXELS, graph.output_name_to_node())
    images = graph.model.graph.input[0]
    is_uint8 = images.type.tensor_type.elem_type == TensorProto.UINT8
    if path is None or path[-1].input[0] != images.name or not is_uint8:
        return
    mean = graph.get_constant_value(path[0].input[1]) if len(path) == 3 else np.zeros(1)
    if mean is None or np.unique(mean).size != 1:
        return
    value = float(mean.flat[0])
    zero_point = round(value)
    if not 0 <= zero_point <= 255:  # not a pixel value
        return
    kernel, scale, whole, step = (
        graph.get_constant_value(name).astype(np.float64)
        for name in (*weights.input[:2], *bias.input[:2])
    )  # a scale for each output channel
    offset = whole * step + (zero_point - value) * scale * kernel.sum(axis=(1, 2, 3))
    _put(graph, bias, 0, np.round(offset / scale).astype(np.int32))
    _put(graph, bias, 1, scale.astype(np.float32))
    dequantise.input[0] = path[-2].input[0]
    _put(graph, dequantise, 1, np.array(1, np.float32))
    _put(graph, dequantise, 2, np.array(zero_point, np.uint8))


def _widen(graph: OnnxModel, dequantise: NodeProto, weights: NodeProto) -> None:
    kernel = graph.get_constant_value(weights.input[0])
    if kernel.shape[1] != 3 or max(kernel.shape[2:]) > _LARGEST_WIDENED:
        return
    _put(graph, weights, 0, np.concatenate([kernel, np.zeros_like(kernel[:, :1])], axis=1))
    sources = [dequantise.input[0], ""]
    gather = helper.make_node("Gather", sources, ["pixels.wide"], name="pixels.wide", axis=1)
    _put(graph, gather, 1, np.array([0, 1, 2, 2]))
    dequantise.input[0] = gather.output[0]
    nodes = graph.model.graph.node
    nodes.insert(list(nodes).index(dequantise), gather)


def _first_convolution(model: onnx.ModelProto) -> NodeProto | None:
    layers: tuple[str, ...] = weighted_layers(model)[:1]
    first: NodeProto | None = next((n for n in model.graph.node if n.name in layers), None)
    return first if first is not None and first.op_type == "Conv" else None


def _put(graph: OnnxModel, node: NodeProto, index: int, values: NDArray[Any]) -> None:
    """Sets a node's input to a new constant; other nodes may use the old one."""
    name = f"{node.name}.{index}.folded"
    graph.add_initializer(numpy_helper.from_array(values, name))
    node.input[index] = name
