"""The int8 variant: static QDQ quantisation with ranges measured on real photos.

In: an optimised float32 graph and sample inputs. Out: int8 graphs with any layers kept in
float. Next: `search.py`, which decides on those layers.

The choices, with what they are worth on an EfficientNet-Lite0 (mAP on 800 photos):

- weights per output channel: -3.8 points with one scale a tensor, -0.0 with one a channel;
- ranges are the mean over photos of each photo's minimum and maximum: one odd photo does
  not stretch them (0.5 dB better logits than the overall extremes), nothing to tune;
- products of two activations, which attention is made of, in float: 2 dB better logits, the same
  mAP; 6 to 9 dB on ViTs of random weights;
- activations unsigned, weights signed: ONNX Runtime's fast kernels on x86;
- all 8 bits of the weights: 7 (`reduce_range`) cost 6 dB. A CPU without VNNI may saturate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import create_calibrator, save_tensors_data
from onnxruntime.quantization.shape_inference import quant_pre_process

from export.graphs import constant_names, hide_outputs, prelude_nodes, weighted_layers
from export.pixels import feed_pixels

Feed = Mapping[str, NDArray[np.generic]]

# Weighted layers, and what stands between them and can stay in 8 bits without loss.
# Softmax, norms and smooth activations are absent: they stay in float.
_OP_TYPES = (
    *("Conv", "Gemm", "MatMul", "Add", "Relu", "Clip", "MaxPool", "AveragePool"),
    *("GlobalAveragePool", "Concat", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"),
)


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


class Quantiser:
    """Quantises one graph, as often as wanted, with ranges that were measured once.

    Attributes:
        layers: names of the nodes with weights that it quantises, in graph order.
    """

    def __init__(self, model: onnx.ModelProto, samples: Iterable[Feed], folder: Path) -> None:
        """Measures the range of every value in the graph.

        Args:
            model: optimised float32 graph.
            samples: inputs, one photo each.
            folder: an existing folder for intermediate files.
        """
        self._prepared = folder / "prepared.onnx"
        self._ranges = folder / "ranges.json"
        self._result = folder / "int8.onnx"
        plain = folder / "plain.onnx"
        # Told of the memory as an output, the quantiser would round it on its way out.
        alone, self._hidden = hide_outputs(model)
        onnx.save(alone, plain)
        quant_pre_process(plain, self._prepared, skip_symbolic_shape=True)
        prepared = onnx.load(self._prepared)
        self._float = _float_nodes(prepared)
        self.layers = tuple(n for n in weighted_layers(prepared) if n not in self._float)
        calibrator = create_calibrator(
            self._prepared,
            list(_OP_TYPES),
            augmented_model_path=str(folder / "augmented.onnx"),
            extra_options={"moving_average": True},  # the mean of the photos' extremes
        )
        calibrator.collect_data(_Samples(samples))
        save_tensors_data(calibrator.compute_data(), self._ranges)

    def quantise(self, keep_float: Collection[str] = ()) -> onnx.ModelProto:
        """Returns the graph in int8, but for the named layers and what never is."""
        quantize_static(
            self._prepared,
            self._result,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_OP_TYPES),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=sorted({*self._float, *keep_float}),
            calibration_cache_path=self._ranges,
        )
        model = onnx.load(self._result)
        feed_pixels(model)
        model.graph.output.extend(self._hidden)
        onnx.checker.check_model(model)
        return model


def _float_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the nodes that 8 bits would harm or not speed up.

    The prelude sees exact pixels. An Add with a constant is a bias, whose precision costs
    nothing. A MatMul with stacked weights (group pooling) has no integer kernel. One without
    weights is a product of attention: its factors, a softmax above all, lose much. The layer
    that gives the logits is small, and its noise would go straight to the answer.
    """
    constants = constant_names(model)
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    nodes = set(prelude_nodes(model))
    if model.graph.output[0].name == "logits":
        nodes.update(weighted_layers(model)[-1:])
    for node in model.graph.node:
        bias = node.op_type == "Add" and not constants.isdisjoint(node.input)
        no_matrix = node.op_type == "MatMul" and ranks.get(node.input[1]) != 2
        if bias or no_matrix:
            nodes.add(node.name)
    return frozenset(nodes)
