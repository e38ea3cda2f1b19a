import resource
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export import ExportError
from export.build import ExportRequest, build_bundle
from export.graphs.graph import EncoderAndHead, Graphs, constant_names, open_session
from export.graphs.optimise import compact_weights, halve, optimise
from export.graphs.trace import example, trace_graph
from export.int8.search import signal_to_noise
from models.checkpoints.checkpoint import write_checkpoint
from models.network import Network
from service.images.decode import PixelArray
from tests.export.tiny_network import ENCODER_WIDTH, LABELS, make_network


def _count_constant_nodes(model: onnx.ModelProto) -> int:
    constants = constant_names(model)
    return sum(1 for node in model.graph.node if constants.issuperset(node.output))


def test_optimise_folds_values_of_fixed_queries(network: Network, graphs: Graphs) -> None:
    tokens = {"tokens": example("B", "S", ENCODER_WIDTH)}
    # The trace holds the norm of the queries and their projection, so it can fail.
    assert _count_constant_nodes(trace_graph(network.head, tokens, "logits")) > 0
    assert all(_count_constant_nodes(model) == 0 for model in graphs.values())


def test_optimise_emits_standard_operators_only(graphs: Graphs) -> None:
    for model in graphs.values():
        assert {node.domain for node in model.graph.node} == {""}
        assert [entry.domain for entry in model.opset_import] == [""]


def test_optimise_fails_with_one_line_when_the_disk_is_full(graphs: Graphs) -> None:
    model = graphs["encoder"]
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))  # a full disk, to this process
    try:
        with pytest.raises(ExportError, match=rf"MB can be written to {tempfile.gettempdir()}/"):
            optimise(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert optimise(model).graph.node


def test_compact_weights_equal_rounded_weights(graphs: Graphs) -> None:
    rounded = onnx.ModelProto()
    rounded.CopyFrom(graphs["trained_head"])
    for tensor in rounded.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size >= 1024:
            halves = values.astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    tokens = np.random.default_rng(0).standard_normal((2, 5, ENCODER_WIDTH), dtype=np.float32)
    compact = compact_weights(graphs["trained_head"])
    compacted, expected, exact = (
        open_session(model).run(["logits"], {"tokens": tokens})[0]
        for model in (compact, rounded, graphs["trained_head"])
    )
    assert np.array_equal(compacted, expected)
    assert not np.array_equal(compacted, exact)
    assert compact.ByteSize() < 0.65 * graphs["trained_head"].ByteSize()


def test_halve_converts_weights_and_not_the_boundary(graphs: Graphs, pixels: PixelArray) -> None:
    halves: Graphs = {name: halve(model) for name, model in graphs.items()}
    for name, model in graphs.items():
        half = halves[name]
        assert half.graph.input[0].type == model.graph.input[0].type, name
        assert half.graph.output[0].type == model.graph.output[0].type, name
        assert TensorProto.FLOAT not in {tensor.data_type for tensor in half.graph.initializer}
        assert half.ByteSize() < 0.65 * model.ByteSize()
    assert (
        signal_to_noise(
            EncoderAndHead(graphs).predict(pixels), EncoderAndHead(halves).predict(pixels)
        )
        > 40
    )


def test_fp16_is_left_out_when_values_overflow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, path = make_network(), tmp_path / "large.safetensors"
    layer, factor = network.head.layer, 1e7  # what it computes stays the same
    layer.linear1.weight.data *= factor
    layer.linear1.bias.data *= factor
    layer.linear2.weight.data /= factor
    write_checkpoint(path, network, LABELS, {})
    bundle = build_bundle(ExportRequest(path, tmp_path / "model", precisions=frozenset({"fp16"})))
    assert bundle.precisions() == ("fp32",)
    assert "left out fp16: logits of" in caplog.text


def test_halve_keeps_the_scales_that_resizes_share() -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 1.3, 2], np.float32), "scales")
    nodes = [
        helper.make_node("Resize", [name, "", "scales"], [target], name=target, mode="linear")
        for name, target in (("x", "y"), ("y", "z"))
    ]
    nodes.append(helper.make_node("Mul", ["z", "scales"], ["out"]))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 1, 10, 1)), ("out", (1, 1, 16, 4)))
    ]
    graph = helper.make_graph(nodes, "resizes", ports[:1], ports[1:], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    x = np.random.default_rng(0).random((1, 1, 10, 1), dtype=np.float32)
    exact, half = (
        open_session(graph_model).run(["out"], {"x": x})[0] for graph_model in (model, halve(model))
    )
    assert half == pytest.approx(exact, rel=1e-2, abs=1e-2)
