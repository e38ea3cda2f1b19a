"""Sessions disable what ONNX Runtime does that is slower or less exact, or holds memory."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.bundle.card import Device
from service.bundle.reader import Bundle
from service.engine.devices import multiplies_int8
from service.engine.sessions import (
    SLOWER_ON_CPU,
    SessionConfig,
    first_line,
    list_providers,
    open_session,
)
from tests.support.engines import pretend_gpu
from tests.support.tiny_bundle import parse_graph, tiny_graphs, write_tiny_bundle

# A residual connection and its norm.
ADD_AND_NORMALISE = parse_graph(
    """(float[B, S, 8] x, float[B, S, 8] y) => (float[B, S, 8] z) {
        sum = Add (x, y)
        z = LayerNormalization <axis = -1> (sum, scale)
    }""",
    scale=np.ones(8, np.float32),
)


def operators_that_run(folder: Path, disabled: list[str]) -> Counter[str]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    provider = "CPUExecutionProvider"
    ort.InferenceSession(
        ADD_AND_NORMALISE, options, providers=[provider], disabled_optimizers=disabled
    )
    return Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


def test_session_does_not_hold_the_file_and_its_weights(tiny_bundle: Bundle) -> None:
    graph = tiny_bundle.read_graph("encoder", "fp32")
    usual = ort.InferenceSession(graph, ort.SessionOptions(), providers=["CPUExecutionProvider"])
    assert graph in vars(usual).values()
    session = open_session(tiny_bundle, "encoder", SessionConfig("cpu", "fp32"))
    assert graph not in vars(session).values()


def test_disabled_optimiser_is_the_one_that_fuses_sums_and_norms(tmp_path: Path) -> None:
    assert "SkipLayerNormalization" in operators_that_run(tmp_path, [])
    assert operators_that_run(tmp_path, SLOWER_ON_CPU) == {"Add": 1, "LayerNormalization": 1}


@pytest.mark.parametrize("vnni", [True, False])
def test_int8_sums_do_not_saturate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, vnni: bool
) -> None:
    monkeypatch.setattr(
        "service.engine.sessions.multiplies_int8", lambda: vnni and multiplies_int8()
    )
    graph = parse_graph(
        "(uint8[B, 4] images) => (int32[B, 16] sums) { sums = MatMulInteger (images, weights) }",
        weights=np.full((4, 16), 127, np.int8),
    )
    graphs = {**tiny_graphs(), "encoder": {"fp32": graph, "int8": graph}}

    session = open_session(
        write_tiny_bundle(tmp_path, graphs=graphs), "encoder", SessionConfig("cpu", "int8")
    )

    sums = session.run(["sums"], {"images": np.full((2, 4), 255, np.uint8)})[0]
    assert np.all(sums == 4 * 255 * 127)


def test_tf32_is_disabled_on_a_gpu_except_for_fp16() -> None:
    tf32 = {}
    for precision in ("fp32", "int8", "fp16"):
        (name, options), *others = list_providers("cuda", precision, {})
        assert (name, others) == ("CUDAExecutionProvider", [("CPUExecutionProvider", {})])
        tf32[precision] = options.get("use_tf32")

    assert tf32 == {"fp32": "0", "int8": "0", "fp16": None}


def test_options_replace_the_defaults_of_the_cuda_provider_alone() -> None:
    given = {"cudnn_conv_algo_search": "DEFAULT", "use_tf32": "1"}
    tensorrt, (_, options), cpu = list_providers("tensorrt", "fp32", given)
    assert (tensorrt[1], cpu[1]) == ({}, {})
    assert options == {**given, "arena_extend_strategy": "kSameAsRequested"}


@pytest.mark.parametrize(("device", "planned"), [("cpu", True), ("cuda", False)])
def test_memory_pattern_is_disabled_on_a_gpu(
    tiny_bundle: Bundle, device: Device, planned: bool
) -> None:
    with pretend_gpu():
        session = open_session(tiny_bundle, "encoder", SessionConfig(device, "fp32"))

    assert session.get_session_options().enable_mem_pattern == planned


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "std::conditional_t<...> CudaCall(...) [with ERRTYPE = cudaError] "
            "CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; file=/src/x.cc ; line=1\nmore",
            "CUDA failure 2: out of memory",
        ),
        (
            "/src/options.h:151 Status Parse(const Options&) const "
            'Unknown provider option: "prefer_nwhc".\n',
            'Unknown provider option: "prefer_nwhc".',
        ),
        ("[ONNXRuntimeError] : 7 : BAD\nmore", "[ONNXRuntimeError] : 7 : BAD"),
        ("", "RuntimeError"),
    ],
)
def test_first_line_removes_signature_host_and_source_file(message: str, said: str) -> None:
    assert first_line(RuntimeError(message)) == said
