"""Static int8 (QDQ) quantisation with ranges measured on photos.

The choices, with their effect on an EfficientNet-Lite0 (mAP on 800 photos, dB of the logits):

- weights per output channel (-0.0 points; with one scale a tensor: -3.8), signed and in all 8 bits
  (7: -6 dB). A CPU without VNNI would saturate: there, sessions use slower kernels and the service
  fp32;
- ranges are the mean over photos of each photo's minimum and maximum: one odd photo does not
  stretch them (0.5 dB better than the overall extremes), no parameter to tune;
- in float: products of two activations, as in attention (2 dB better, the same mAP; 6 to 9 dB on
  ViTs of random weights), and results of a MatMul, whose bias, added in float, would cause a second
  rounding (4 dB better, in 6% less time);
- activations unsigned: ONNX Runtime's fast kernels on x86 want them and signed weights.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_static,
)

from export.graphs.graph import constant_names, prelude_nodes, weighted_layers
from export.graphs.pixels import feed_pixels

Feed = Mapping[str, NDArray[np.generic]]

# Weighted layers, and operators between them that lose nothing in 8 bits. Softmax, norms and
# smooth activations stay in float.
_OP_TYPES = (
    *("Conv", "Gemm", "MatMul", "Add", "Relu", "Clip", "MaxPool", "AveragePool"),
    *("GlobalAveragePool", "Concat", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"),
)
_ACTIVATIONS = ("Relu", "Clip")
# ONNX Runtime's sessions round their weights if they are between rounded values.
_ROUNDED_BY_SESSIONS = ("Conv", "Gemm")


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


class Quantiser:
    """Quantises one graph repeatedly, with ranges that are measured once."""

    def __init__(self, model: onnx.ModelProto, samples: Iterable[Feed], folder: Path) -> None:
        """Prepares an optimised float32 graph; `samples` are inputs, one photo each."""
        self._prepared, self._folder = folder / "prepared.onnx", folder
        self._samples = _Samples(samples)
        folder.mkdir(exist_ok=True)
        plain = folder / "plain.onnx"
        # The quantiser would round the memory if it were an output.
        logits_only = copy.deepcopy(model)
        self._hidden = list(model.graph.output[1:])
        del logits_only.graph.output[1:]
        onnx.save(logits_only, plain)
        quant_pre_process(plain, self._prepared, skip_symbolic_shape=True)
        self.exact = onnx.load(self._prepared)
        self._float = _float_nodes(self.exact)
        # The nodes that are quantised, in the order of the graph.
        self.layers = tuple(n for n in weighted_layers(self.exact) if n not in self._float)

    def quantise(self, keep_float: Collection[str] = ()) -> onnx.ModelProto:
        """Returns the graph in int8, except the named layers and those never quantised."""
        model = self._quantise(exclude=[*self._float, *keep_float])
        _keep_weights(model)
        feed_pixels(model)
        model.graph.output.extend(self._hidden)
        onnx.checker.check_model(model)
        return model

    def quantise_only(self, layer: str) -> onnx.ModelProto:
        """Returns the graph with one layer in int8, and its activation."""
        nodes = self.exact.graph.node
        made = {name for node in nodes if node.name == layer for name in node.output}
        activations = [
            n.name for n in nodes if n.op_type in _ACTIVATIONS and not made.isdisjoint(n.input)
        ]
        return self._quantise(only=[layer, *activations])

    def _quantise(self, only: Sequence[str] = (), exclude: Sequence[str] = ()) -> onnx.ModelProto:
        result = self._folder / "int8.onnx"
        quantize_static(
            self._prepared,
            result,
            self._samples,  # read by the first call only
            calibration_cache_path=self._folder / "ranges.json",
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_OP_TYPES),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=list(only),
            nodes_to_exclude=sorted(exclude),
            extra_options={
                "OpTypesToExcludeOutputQuantization": ["MatMul"],
                "CalibMovingAverage": True,  # the mean of the photos' extremes
            },
        )
        return onnx.load(result)


def _keep_weights(model: onnx.ModelProto) -> None:
    """Prevents ONNX Runtime from rounding the weights of layers in float.

    If the values before and after a layer are rounded, a session rounds its weights as well,
    with one scale for all channels (`WeightBiasQuantization`): worse than int8. It skips layers
    whose bias is not a constant, so the bias becomes a DequantizeLinear of 31 bits.
    """
    rounded = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in list(model.graph.node):
        between = node.op_type in _ROUNDED_BY_SESSIONS and node.input[0] in rounded
        if between and node.input[1] in stored:
            _hide_bias(model, node, stored)


def _hide_bias(model: onnx.ModelProto, layer: NodeProto, stored: Mapping[str, TensorProto]) -> None:
    if len(layer.input) < 3:
        layer.input.append("")
        bias = np.zeros(stored[layer.input[1]].dims[0], np.float32)
    elif layer.input[2] in stored:
        bias = numpy_helper.to_array(stored[layer.input[2]])
    else:
        return
    whole, step, exact = (f"{layer.name}.bias.{part}" for part in ("whole", "step", "exact"))
    size = np.float32(np.abs(bias).max() / 2**30) or np.float32(1)
    values = np.round(bias / np.float64(size)).astype(np.int32)
    model.graph.initializer.append(numpy_helper.from_array(values, whole))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(size), step))
    multiply = helper.make_node("DequantizeLinear", [whole, step], [exact], name=exact)
    model.graph.node.insert(list(model.graph.node).index(layer), multiply)
    layer.input[2] = exact


def _float_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the nodes that 8 bits would harm or not speed up.

    The prelude reads exact pixels. An Add with a constant is a bias, which float makes no
    slower. A MatMul with stacked weights (group pooling) has no integer kernel. One without
    weights multiplies factors of attention that 8 bits harm, above all a softmax. The layer
    of the logits is small, and its noise would reach the answer directly.
    """
    constants = constant_names(model)
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    nodes = set(prelude_nodes(model))
    if model.graph.output[0].name == "logits":
        nodes.update(weighted_layers(model)[-1:])
    for node in model.graph.node:
        bias = node.op_type == "Add" and not constants.isdisjoint(node.input)
        no_matrix = node.op_type == "MatMul" and ranks.get(node.input[1]) != 2
        if bias or no_matrix or node.op_type not in _OP_TYPES:
            nodes.add(node.name)
    return frozenset(nodes)
