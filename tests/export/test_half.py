from __future__ import annotations

from onnx import TensorProto

from export.graphs import Chain, Graphs, PixelArray
from export.half import halve
from export.search import signal_to_noise


def test_weights_are_float16_and_the_boundary_is_not(graphs: Graphs) -> None:
    for name, model in graphs.items():
        half = halve(model)
        assert half.graph.input[0].type == model.graph.input[0].type, name
        assert half.graph.output[0].type == model.graph.output[0].type, name
        types = {tensor.data_type for tensor in half.graph.initializer}
        assert TensorProto.FLOAT not in types
        assert half.ByteSize() < 0.65 * model.ByteSize()


def test_logits_are_close_to_float32(graphs: Graphs, pixels: PixelArray) -> None:
    half = {name: halve(model) for name, model in graphs.items()}
    expected = Chain(graphs).predict(pixels)
    assert signal_to_noise(expected, Chain(half).predict(pixels)) > 40
