from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from export.build import ExportRequest, build_bundle
from export.errors import VerificationError
from export.graphs.graph import Chain, Graphs, PixelArray
from export.graphs.half import halve
from export.int8.search import signal_to_noise
from export.sources.trained import SourceHints
from models.checkpoints.checkpoint import write_checkpoint
from models.heads.ml_decoder import MLDecoder
from tests.export.tiny_network import LABELS, make_network


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


def test_network_whose_values_float16_cannot_hold_has_no_such_variant(tmp_path: Path) -> None:
    network, path = make_network(), tmp_path / "large.safetensors"
    assert isinstance(network.head, MLDecoder)
    layer, factor = network.head.layer, 1e7  # what it computes stays the same
    layer.linear1.weight.data *= factor
    layer.linear1.bias.data *= factor
    layer.linear2.weight.data /= factor
    write_checkpoint(path, network, LABELS, {})
    out = tmp_path / "model"
    with pytest.raises(VerificationError, match="fp16, which --precision may leave out: logits"):
        build_bundle(ExportRequest(SourceHints(path), out, precisions=frozenset({"fp16"})))
    assert not out.exists()
    assert build_bundle(ExportRequest(SourceHints(path), out)).precisions() == ("fp32",)
