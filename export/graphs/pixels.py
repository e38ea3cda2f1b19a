"""Folds normalisation into the first convolution: less arithmetic, the same function."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers.onnx_model import OnnxModel

from export.graphs.graph import weighted_layers

_Array = NDArray[Any]
# QuantizeLinear and DequantizeLinear of a layer's input, DequantizeLinear of weights and of bias.
_Stem = tuple[NodeProto, NodeProto, NodeProto, NodeProto]

# ONNX Runtime has a faster int8 convolution for multiples of four channels, which halves the time
# of a stem. For larger windows, such as a ViT's patches, a fourth channel costs more than it saves.
_LARGEST_WIDENED = 7


def fold_scale(model: onnx.ModelProto) -> None:
    """Moves the scale of the pixels into the first convolution's weights, in place.

    `(pixels - mean) * scale` becomes `pixels - mean`. The mean stays: the convolution pads with
    zeros after it. Encoders without a scale right before a convolution are left unchanged.
    """
    convolution = _first_convolution(model)
    scaling = _producer(model, convolution.input[0]) if convolution is not None else None
    if convolution is None or scaling is None or scaling.op_type != "Mul":
        return
    scale, weights = _constant(model, scaling.input[1]), _constant(model, convolution.input[1])
    if scale is None or weights is None or weights.shape[1] != 3:
        return
    if scale.shape not in {(3, 1, 1), (1, 3, 1, 1), (1,), ()}:
        return
    scaled = weights.astype(np.float64) * scale.astype(np.float64)
    _put(model, convolution, 1, scaled.astype(np.float32))
    convolution.input[0] = scaling.input[0]
    OnnxModel(model).prune_graph()


def feed_pixels(model: onnx.ModelProto) -> None:
    """Connects the first convolution of an int8 encoder to the pixels, in place.

    With the mean as zero point, a quantised `pixel - mean` is the pixel itself; the mean's
    fraction goes to the bias. This needs one mean for all channels. A fourth channel, of zero
    weight, allows ONNX Runtime's faster convolution. A first layer in float or of another kind is
    left unchanged.
    """
    stem = _find_stem(model)
    if stem is None:
        return
    _drop_mean(model, stem)
    _widen(model, stem)
    OnnxModel(model).prune_graph()
    del model.graph.value_info[:]  # shapes that are out of date


def _find_stem(model: onnx.ModelProto) -> _Stem | None:
    """Returns the nodes around the first convolution of an int8 encoder."""
    convolution = _first_convolution(model)
    if convolution is None or len(convolution.input) != 3:
        return None
    dequantise, weights, bias = (_producer(model, name) for name in convolution.input)
    if dequantise is None or weights is None or bias is None:
        return None
    quantise = _producer(model, dequantise.input[0])
    if quantise is None or quantise.op_type != "QuantizeLinear":
        return None
    return quantise, dequantise, weights, bias


def _drop_mean(model: onnx.ModelProto, stem: _Stem) -> None:
    quantise, dequantise, weights, offset = stem
    source = _find_pixels(model, quantise.input[0])
    if source is None:
        return
    pixels, mean = source
    if np.unique(mean).size != 1:
        return
    value = float(mean.flat[0])
    zero_point = round(value)
    if not 0 <= zero_point <= 255:  # not a pixel value
        return
    kernel = _need(model, weights.input[0]).astype(np.float64)
    scale = _need(model, weights.input[1]).astype(np.float64)  # of each output channel
    bias = _need(model, offset.input[0]) * _need(model, offset.input[1]).astype(np.float64)
    bias += (zero_point - value) * scale * kernel.sum(axis=(1, 2, 3))
    _put(model, offset, 0, np.round(bias / scale).astype(np.int32))
    _put(model, offset, 1, scale.astype(np.float32))
    dequantise.input[0] = pixels
    _put(model, dequantise, 1, np.array(1, np.float32))
    _put(model, dequantise, 2, np.array(zero_point, np.uint8))


def _find_pixels(model: onnx.ModelProto, name: str) -> tuple[str, _Array] | None:
    """Returns the transposed uint8 pixels of a value, and the mean subtracted; else None."""
    mean: _Array | None = np.zeros(1)
    node = _producer(model, name)
    if node is not None and node.op_type == "Sub":
        mean, node = _constant(model, node.input[1]), _producer(model, node.input[0])
    if mean is None or node is None or node.op_type != "Cast":
        return None
    order = _producer(model, node.input[0])
    images = model.graph.input[0]
    if order is None or order.op_type != "Transpose" or order.input[0] != images.name:
        return None
    whole = images.type.tensor_type.elem_type == TensorProto.UINT8
    return (node.input[0], mean) if whole else None


def _widen(model: onnx.ModelProto, stem: _Stem) -> None:
    _, dequantise, weights, _ = stem
    kernel = _need(model, weights.input[0])
    if kernel.shape[1] != 3 or max(kernel.shape[2:]) > _LARGEST_WIDENED:
        return
    _put(model, weights, 0, np.concatenate([kernel, np.zeros_like(kernel[:, :1])], axis=1))
    sources = [dequantise.input[0], ""]
    gather = helper.make_node("Gather", sources, ["pixels.wide"], name="pixels.wide", axis=1)
    _put(model, gather, 1, np.array([0, 1, 2, 2]))
    dequantise.input[0] = gather.output[0]
    model.graph.node.insert(list(model.graph.node).index(dequantise), gather)


def _first_convolution(model: onnx.ModelProto) -> NodeProto | None:
    layers: tuple[str, ...] = weighted_layers(model)[:1]
    first: NodeProto | None = next((n for n in model.graph.node if n.name in layers), None)
    return first if first is not None and first.op_type == "Conv" else None


def _producer(model: onnx.ModelProto, name: str) -> NodeProto | None:
    return next((n for n in model.graph.node if name in n.output), None)


def _constant(model: onnx.ModelProto, name: str) -> _Array | None:
    stored = (t for t in model.graph.initializer if t.name == name)
    return next(map(numpy_helper.to_array, stored), None)


def _need(model: onnx.ModelProto, name: str) -> _Array:
    constant = _constant(model, name)
    assert constant is not None, name  # the quantiser stores constants as initialisers
    return constant


def _put(model: onnx.ModelProto, node: NodeProto, index: int, values: _Array) -> None:
    """Sets a node's input to a new constant; other nodes may use the old one."""
    name = f"{node.name}.{index}.folded"
    model.graph.initializer.append(numpy_helper.from_array(values, name))
    node.input[index] = name
