from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.graphs.graph import Graphs, constant_names, open_session, weighted_layers
from export.graphs.optimise import optimise
from export.graphs.trace import trace_encoder
from export.int8.quantise import Quantiser
from export.int8.search import signal_to_noise
from models.config import InputConfig


def float_layers(model: onnx.ModelProto) -> set[str]:
    """Layers whose weight is not behind a DequantizeLinear."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return {n.name for n in model.graph.node if n.op_type == "Conv" and n.input[1] in stored}


def test_every_layer_is_in_8_bits_unless_it_is_kept(quantiser: Quantiser) -> None:
    assert float_layers(quantiser.quantise()) == set()
    kept = set(quantiser.layers[1:3])
    assert float_layers(quantiser.quantise(kept)) == kept


def test_each_output_channel_has_its_own_weight_scale(quantiser: Quantiser) -> None:
    model = quantiser.quantise()
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = [
        (tensors[node.input[0]], tensors[node.input[1]])
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors
    ]
    kernels = [(w, scale) for w, scale in weights if w.dtype == np.int8 and w.ndim == 4]
    assert len(kernels) == len(quantiser.layers)
    assert all(scale.shape == (len(w),) for w, scale in kernels)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_kept_in_float_is_exact_in_a_session_too(tmp_path: Path, bias: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(8 if i else 3, 8, 1, bias=bias) for i in range(3)]
    kept = layers[1]
    spread = torch.logspace(-3, 0, 8)  # one scale does not fit it
    kept.weight.data *= spread.view(8, 1, 1, 1)
    if kept.bias is not None:
        kept.bias.data *= spread
    layers[2].weight.data /= spread.view(1, 8, 1, 1)
    network = nn.Sequential(*layers, nn.Flatten(2))
    model = optimise(trace_encoder(network, InputConfig(height=8, width=8)))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    quantiser = Quantiser(model, ({"images": photo[np.newaxis]} for photo in pixels), tmp_path)
    int8 = quantiser.quantise([quantiser.layers[1]])
    assert float_layers(int8) == {quantiser.layers[1]}
    as_written = onnxruntime.SessionOptions()
    as_written.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(int8.SerializeToString(), as_written)
    (expected,) = plain.run(["tokens"], {"images": pixels})
    (optimised,) = open_session(int8).run(["tokens"], {"images": pixels})
    assert signal_to_noise(expected, optimised) > 35


def test_activations_are_unsigned_inside_and_float_at_the_boundary(
    quantiser: Quantiser, graphs: Graphs
) -> None:
    model = quantiser.quantise()
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    points = [n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert {stored[point] for point in points} == {onnx.TensorProto.UINT8}  # faster on x86
    assert model.graph.input[0].type == graphs["encoder"].graph.input[0].type
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_attention_and_biases_stay_in_float(head_quantiser: Quantiser) -> None:
    model = head_quantiser.quantise()
    nodes, constants = model.graph.node, constant_names(model)
    (attention,) = (out for node in nodes if node.op_type == "Softmax" for out in node.output)
    assert [node.op_type for node in nodes if attention in node.input] == ["MatMul"]
    biases = [n for n in nodes if n.op_type == "Add" and not constants.isdisjoint(n.input)]
    stored = {tensor.name for tensor in model.graph.initializer}
    assert biases
    assert all(not stored.isdisjoint(node.input) for node in biases)


def test_products_of_a_matmul_are_not_rounded_before_their_bias(head_quantiser: Quantiser) -> None:
    nodes = head_quantiser.quantise().graph.node
    products = {node.output[0] for node in nodes if node.name in head_quantiser.layers}
    readers = {node.op_type for node in nodes if products.intersection(node.input)}
    assert "Add" in readers
    assert "QuantizeLinear" not in readers


def test_group_pooling_and_logits_stay_in_float(graphs: Graphs, head_quantiser: Quantiser) -> None:
    assert head_quantiser.layers == weighted_layers(graphs["trained_head"])[:-1]
