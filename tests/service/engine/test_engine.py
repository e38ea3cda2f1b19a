"""The engine runs a bundle on the requested device, or it does not start."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from service.bundle.card import Device
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine import session_set
from service.engine.engine import Engine, open_engine
from service.engine.heads import LABELS_PER_RUN, TRAINED_HEAD, LogitsArray
from service.engine.session_set import SessionSet
from service.errors import BundleError, InferenceFailed, OutOfMemory, StartError
from service.images.decode import PixelArray
from tests.support.engines import (
    assert_gives_the_cpus_logits,
    assert_gives_the_cpus_memories,
    needs_openvino,
    pretend_gpu,
)
from tests.support.tiny_bundle import (
    SIDE,
    WIDTH,
    blank_labels,
    parse_graph,
    random_images,
    tiny_encoder,
    tiny_graphs,
    tiny_head,
    write_tiny_bundle,
)

# Sums in another order move a float32 logit of this size by less.
TOLERANCE = 1e-5


@pytest.fixture(
    scope="module", params=["cpu", "cuda", pytest.param("openvino", marks=needs_openvino)]
)
def engine(request: pytest.FixtureRequest, tiny_bundle: Bundle) -> Engine:
    with pretend_gpu():
        engine = open_engine(
            tiny_bundle, device=request.param, precision="fp32", max_batch_size=8, threads=2
        )
    engine.warm_up()
    return engine


def run_trained(engine: Engine, images: PixelArray, *, alone: bool = False) -> LogitsArray:
    """Returns the trained logits [B, N]."""
    results = engine.run(images, [[TRAINED_HEAD]] * len(images), alone=alone)
    return np.stack([logits for (logits,), *_ in results])


def write_with(tmp_path: Path, **replaced: bytes) -> Bundle:
    graphs = {name: dict(variants) for name, variants in tiny_graphs().items()}
    names: tuple[GraphName, ...] = ("encoder", "trained_head")
    for name in names:
        graphs[name] = {"fp32": replaced.get(name, graphs[name]["fp32"])}
    return write_tiny_bundle(tmp_path, graphs=graphs)


def list_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ort.InferenceSession]]:
    """Returns a list that grows with the batch size and the encoder of each run."""
    runs: list[tuple[int, ort.InferenceSession]] = []
    run = SessionSet.run

    def remember(lane: SessionSet, images: PixelArray, *others: Any) -> Any:
        runs.append((len(images), lane.encoder))
        return run(lane, images, *others)

    monkeypatch.setattr(SessionSet, "run", remember)
    return runs


def test_lone_image_runs_on_every_thread_and_others_on_one(
    cpu: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list_runs(monkeypatch)
    for count, alone in ((1, True), (1, False), (2, True)):
        run_trained(cpu, random_images(0, count), alone=alone)

    threads = [encoder.get_session_options().intra_op_num_threads for _, encoder in runs]
    assert threads == [2, 1, 1]


def test_parallel_runs_do_not_mix(engine: Engine) -> None:
    batches = [random_images(seed, 4) for seed in range(12)]
    expected = [run_trained(engine, images) for images in batches]

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda images: run_trained(engine, images), batches))

    np.testing.assert_allclose(results, expected, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def cpu(tiny_bundle: Bundle) -> Engine:
    return open_engine(tiny_bundle, device="cpu", precision="fp32", max_batch_size=5, threads=2)


def test_engine_reports_device_precision_and_sizes(cpu: Engine, gpu: Engine) -> None:
    assert (cpu.device, cpu.provider, cpu.precision) == ("cpu", "CPUExecutionProvider", "fp32")
    assert (cpu.max_batch_size, cpu.small_batch_size, cpu.workers) == (5, 2, 2)
    assert (gpu.max_batch_size, gpu.small_batch_size, gpu.workers) == (6, 6, 1)


def test_each_precision_runs_its_own_graphs(tiny_bundle: Bundle, cpu: Engine) -> None:
    images = random_images(0, 1)
    int8 = open_engine(tiny_bundle, device="cpu", precision="int8")
    assert not np.allclose(run_trained(int8, images), run_trained(cpu, images))


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="has CUDA")
@pytest.mark.parametrize(
    ("device", "options", "missing"),
    [("cuda", None, "cuda"), ("tensorrt", None, "tensorrt"), ("auto", "prefer_nhwc=1", "cuda")],
)
def test_start_fails_if_the_device_is_missing_and_auto_does_not_fall_back_with_cuda_options(
    tiny_bundle: Bundle, device: Any, options: str | None, missing: str
) -> None:
    with pytest.raises(StartError, match=f"^device {missing}") as caught:
        open_engine(tiny_bundle, device=device, cuda_options=options)

    assert "\n" not in str(caught.value)


def test_failed_run_is_inference_failed_and_the_next_run_works(engine: Engine) -> None:
    with pytest.raises(InferenceFailed):
        run_trained(engine, np.zeros((1, SIDE + 1, SIDE, 3), np.uint8))

    assert run_trained(engine, random_images(0, 1)).shape == (1, 5)


@pytest.mark.parametrize(
    "message",
    [
        "bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer",
        "CUDA failure 2: out of memory ; GPU=0",
        "std::bad_alloc",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
        "CUDNN failure 4002: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; GPU=0",
    ],
)
def test_engine_raises_out_of_memory_when_memory_is_exhausted(
    cpu: Engine, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def run_out_of_memory(*_args: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(ort.InferenceSession, "run", run_out_of_memory)
    with pytest.raises(OutOfMemory):
        run_trained(cpu, random_images(0, 2))
    with pytest.raises(StartError, match="smaller max_batch_size"):
        cpu.warm_up()


def test_warm_up_runs_every_batch_size(cpu: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cpu.run
    seen: list[tuple[int, bool]] = []

    def spy(images: PixelArray, asked: Any, *, alone: bool = False) -> object:
        seen.append((len(images), alone))
        return run(images, asked, alone=alone)

    monkeypatch.setattr(cpu, "run", spy)
    cpu.warm_up()

    assert sorted(seen) == [(1, False), (1, True), *((size, False) for size in range(2, 6))]


def edit_graph(graph: bytes, edit: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_from_string(graph)
    edit(model)
    return bytes(model.SerializeToString())


def fix_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def take_floats(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT


@pytest.mark.parametrize(
    ("graph", "model", "reason"),
    [
        ("encoder", b"", "encoder is not a usable ONNX graph"),
        ("encoder", b"junk" * 100, "encoder is not a usable ONNX graph"),
        ("encoder", tiny_encoder(side=8), "images has shape"),
        ("encoder", tiny_encoder(output="features"), "features where it should have only tokens"),
        ("encoder", tiny_head(), "encoder has tokens where it should have only images"),
        ("trained_head", tiny_head(num_labels=4), "logits has shape"),
        ("trained_head", tiny_head(width=WIDTH + 1), "tokens has shape"),
        ("trained_head", edit_graph(tiny_head(), fix_batch), "tokens has shape"),
        (
            "encoder",
            edit_graph(tiny_encoder(), take_floats),
            r"images is tensor\(float\), not tensor\(uint8\)",
        ),
    ],
)
def test_graph_that_does_not_fit_is_refused_with_its_reason(
    tmp_path: Path, graph: str, model: bytes, reason: str
) -> None:
    bundle = write_with(tmp_path, **{graph: model})

    with pytest.raises(BundleError, match=reason) as caught:
        open_engine(bundle, device="cpu")

    assert "\n" not in str(caught.value)


def test_wrong_label_count_behind_an_open_dimension_is_found_by_the_warm_up(tmp_path: Path) -> None:
    # The mean of each token: as many logits as tokens, which the graph leaves open.
    mean = "{ logits = ReduceMean <keepdims = 0> (tokens, axis) }"
    head = parse_graph(f"(float[B, S, {WIDTH}] tokens) => (float[B, S] logits) {mean}", axis=[2])
    engine = open_engine(write_with(tmp_path, trained_head=head), device="cpu")

    with pytest.raises(BundleError, match=r"logits of shape \[16\], not \[5\]"):
        engine.warm_up()


@pytest.mark.parametrize("kind", ["beside", "above", "absolute"])
def test_weights_outside_the_bundle_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(np.zeros((WIDTH, 5), np.float32).tobytes())
    (tmp_path / "inner").mkdir()
    location = {"beside": "weights.bin", "above": "../weights.bin", "absolute": str(weights)}[kind]
    monkeypatch.chdir(tmp_path / "inner" if kind == "above" else tmp_path)

    def point_outside(model: onnx.ModelProto) -> None:
        tensor = next(w for w in model.graph.initializer if w.name == "weight")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", str(WIDTH * 5 * 4))):
            tensor.external_data.add(key=key, value=value)

    bundle = write_with(tmp_path, trained_head=edit_graph(tiny_head(), point_outside))
    os.link(weights, bundle.path / "weights.bin")

    with pytest.raises(BundleError, match="trained_head is not a usable ONNX graph"):
        open_engine(bundle, device="cpu")


@pytest.fixture(scope="module")
def gpu(tiny_bundle: Bundle) -> Engine:
    with pretend_gpu():
        return open_engine(tiny_bundle, device="cuda", max_batch_size=6)


def test_each_cuda_encoder_runs_one_batch_size(
    gpu: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list_runs(monkeypatch)

    gpu.warm_up()
    for count in (6, 1, 5, 2, 3, 1, 4):
        run_trained(gpu, random_images(0, count), alone=count == 1)

    assert [size for size, _ in runs[-7:]] == [6, 1, 6, 2, 4, 1, 4]
    assert len(set(runs)) == len({encoder for _, encoder in runs}) == 4


@pytest.mark.parametrize(
    ("device", "workers", "tolerance"),
    [("cuda", 1, TOLERANCE), pytest.param("openvino", 2, 1e-4, marks=needs_openvino)],
)
def test_device_gives_the_cpus_results_for_any_mixture_of_heads(
    mapped_bundle: Bundle, device: Device, workers: int, tolerance: float
) -> None:
    sizes: dict[str, Any] = {"precision": "fp32", "max_batch_size": 6, "threads": 2}
    with pretend_gpu():
        engine = open_engine(mapped_bundle, device=device, **sizes)
    assert (engine.device, engine.workers) == (device, workers)
    engine.warm_up(blank_labels)
    options: dict[str, Any] = {"num_queries": LABELS_PER_RUN + 9, "tolerance": tolerance}
    assert_gives_the_cpus_logits(engine, mapped_bundle, **options)
    assert_gives_the_cpus_memories(engine, mapped_bundle, **options)


def test_gpu_that_opens_and_cannot_run_fails_the_start_or_falls_back(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object, **_tensors: object) -> None:
        raise RuntimeError("bool CudaCall(...) CUDA failure 209: no kernel image\nmore")

    monkeypatch.setattr(session_set, "run_bound", fail)

    with pretend_gpu():
        with pytest.raises(StartError, match=r"^device cuda: CUDA failure 209: no kernel"):
            open_engine(tiny_bundle, device="cuda")
        engine = open_engine(tiny_bundle, device="auto")

    assert engine.device == "cpu"
    assert "CUDA failure 209: no kernel image; FALLING BACK to the CPU" in caplog.text
    assert run_trained(engine, random_images(0, 1)).shape == (1, 5)
