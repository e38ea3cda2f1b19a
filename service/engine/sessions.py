"""One graph of a bundle, opened in ONNX Runtime on the requested device and checked."""

import ctypes
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import onnxruntime as ort

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine.devices import CUDA, PROVIDERS, find_openvino_cpu, multiplies_int8
from service.errors import BundleError, StartError

# TF32 rounds the inputs of fp32 products to 10 bits of mantissa. fp16 needs it: without TF32, its
# convolutions do not use the tensor cores.
_EXACT = {"use_tf32": "0"}
# ONNX Runtime writes a C++ signature of 1,000 characters before the reason, host and file after.
_REASON = re.compile(
    r"(?:\b(?:CUDA|CUDNN|CUDNN_FE|CUBLAS) failure |Please install |Unknown provider option|"
    r"Failed to parse provider option)(?:(?! ; GPU=).)*"
)
# OpenVINO compiles a kernel for each input size and caches 5,000 of them: 1 GB after some hundred
# label sets of different length.
_CACHED_KERNELS = 64
SLOWER_ON_CPU = ["SkipLayerNormFusion"]
"""Optimisations that slow a CPU down: this one's kernel is not vectorised and takes five times as
long as an Add and a LayerNormalization, which is a fifth of a text encoder's time."""

TensorSpec = tuple[str, tuple[int | None, ...]]
"""Element type in ONNX Runtime's words, and the dimensions after the first; None is any size."""
KEYS: dict[str, TensorSpec] = {
    "projected": ("float", (None,)),
    "readouts": ("float", (None,)),
    "votes": ("float", (None,)),
    "names": ("int64", (None,)),
}
"""The keys of labels, of which a graph may have some; see `GraphName`."""


@dataclass(frozen=True)
class SessionConfig:
    """How to open a graph; `threads` are those of one run, `cuda_options` ONNX Runtime's own."""

    device: Device
    precision: RunPrecision
    threads: int = 1
    parallel_runs: int = 1
    spinning: bool = False  # threads wait actively: faster for one run alone, slower for several
    cuda_options: Mapping[str, str] = field(default_factory=dict)


def open_checked(
    bundle: Bundle,
    graph: GraphName,
    config: SessionConfig,
    *,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
) -> ort.InferenceSession:
    """Opens a graph that must have exactly these tensors, but for `KEYS`; as `open_session`."""
    session = open_session(bundle, graph, config)
    _check_tensors(graph, session.get_inputs(), inputs)
    _check_tensors(graph, session.get_outputs(), outputs)
    return session


def open_session(bundle: Bundle, graph: GraphName, config: SessionConfig) -> ort.InferenceSession:
    """Opens one graph on the configured device, without fallback to another.

    Raises `StartError` if the device does not work here, `BundleError` if the graph is damaged.
    """
    device, precision = config.device, bundle.image_precision(graph, config.precision)
    model = bundle.read_graph(graph, precision)
    options = _make_options(graph, config)
    disabled = make_int8_exact(options)
    if device == "cpu":
        disabled += SLOWER_ON_CPU
    try:
        session = ort.InferenceSession(
            model,
            options,
            # OpenVINO is set in the options.
            providers=None
            if device == "openvino"
            else list_providers(device, precision, config.cuda_options),
            enable_fallback=0,
            disabled_optimizers=disabled,
        )
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        if device not in CPU_DEVICES:
            hint = "; try without cuda_options" if config.cuda_options else ""
            raise StartError(
                f"device {device} cannot open {graph}: {first_line(error)}{hint}"
            ) from error
        raise BundleError(f"{graph} is not a usable ONNX graph: {first_line(error)}") from error
    # Kept for a fallback to another provider, which is off: half of the memory of a large model.
    session._model_bytes = None
    provider = PROVIDERS[device][0][0]
    if session.get_providers()[0] != provider:
        raise StartError(f"device {device}: {provider} does not start: see ONNX Runtime's message")
    return session


def make_int8_exact(options: ort.SessionOptions) -> list[str]:
    """Prevents sums that saturate in int8 layers on a CPU without VNNI.

    Returns the optimisations to disable: this one would make a MatMul of stored int8 queries by
    keys, which runs in float, one in uint8 that ONNX Runtime cannot run.
    """
    if not multiplies_int8():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return ["QDQS8ToU8Transformer"]


def list_providers(
    device: Device, precision: RunPrecision, cuda_options: Mapping[str, str]
) -> list[tuple[str, dict[str, str]]]:
    """Returns the execution providers of a device with their options, best first."""
    cuda = {**(_EXACT if precision != "fp16" else {}), **cuda_options}
    return [(name, {**own, **cuda} if name == CUDA else own) for name, own in PROVIDERS[device]]


def _make_options(graph: GraphName, config: SessionConfig) -> ort.SessionOptions:
    options = ort.SessionOptions()
    add_entry = options.add_session_config_entry
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if config.device == "cpu":
        with _arena_lock:
            _share_arena()
        add_entry("session.use_env_allocators", "1")
    # A memory pattern allocates one block for the second run of a shape, and a GPU's arena keeps
    # the memory of the first run too: 1.5 times the memory after the warm-up.
    options.enable_mem_pattern = config.device in CPU_DEVICES
    add_entry("session.intra_op.allow_spinning", "1" if config.spinning else "0")
    add_entry("session.force_spinning_stop", "1")  # at the end of a run
    # A graph may load weights from files that are not verified: this looks for them in a folder
    # that cannot exist.
    add_entry("session.model_external_initializers_file_folder_path", os.devnull)
    if config.device == "openvino":
        # By default OpenVINO uses all cores of the host, even if the container has fewer.
        settings = {
            "INFERENCE_NUM_THREADS": str(config.threads * config.parallel_runs),
            "NUM_STREAMS": str(config.parallel_runs),
            "INFERENCE_PRECISION_HINT": "bf16" if config.precision == "bf16" else "f32",
            "ENABLE_CPU_PINNING": "NO",  # several sessions would be pinned to the same cores
        }
        if graph in {"open_head", "screened_head"}:  # inputs of more sizes than batches have
            settings["CPU_RUNTIME_CACHE_CAPACITY"] = str(_CACHED_KERNELS)
        load_config = {"load_config": json.dumps({"CPU": settings})}
        options.add_provider_for_devices([find_openvino_cpu()], load_config)
    return options


_arena_lock = Lock()  # engine and encoders open at the same time


@cache
def _share_arena() -> None:
    """Creates one arena for all sessions; each arena keeps the memory of its largest run."""
    arena = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", arena, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


def return_memory() -> None:
    """Gives the memory that closed sessions and others have freed back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # glibc's
        trim(0)


def first_line(error: BaseException) -> str:
    """Returns the reason in a message of ONNX Runtime, without signature, host and source file."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    reason = _REASON.search(line)
    return reason.group() if reason else line


def _check_tensors(
    graph: GraphName, tensors: Sequence[Any], wanted: Mapping[str, TensorSpec]
) -> None:
    names = [tensor.name for tensor in tensors]
    required = [name for name in wanted if name in names or name not in KEYS]
    if set(names) != set(required):
        raise BundleError(
            f"{graph} has {', '.join(names) or 'nothing'} where it should have only "
            f"{', '.join(required)}"
        )
    for tensor in tensors:
        kind, sizes = wanted[tensor.name]
        if tensor.type != f"tensor({kind})":
            raise BundleError(f"{graph}: {tensor.name} is {tensor.type}, not tensor({kind})")
        first, *others = tensor.shape
        # The warm-up checks sizes that the graph leaves open.
        if (
            isinstance(first, int)
            or len(others) != len(sizes)
            or any(
                isinstance(actual, int) and size not in {None, actual}
                for actual, size in zip(others, sizes, strict=True)
            )
        ):
            text = ", ".join("*" if size is None else str(size) for size in sizes)
            raise BundleError(f"{graph}: {tensor.name} has shape {tensor.shape}, not [B, {text}]")
