"""One graph of a bundle, opened in ONNX Runtime and checked.

In: a graph's name, its precision and a device. Out: a session that runs on that device and
has the inputs and outputs that the bundle's format asks for. Next: `lanes.py`, which runs
the sessions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import onnxruntime as ort

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.engine.openvino import PROVIDER as _OPENVINO
from service.engine.openvino import add_openvino
from service.errors import BundleError, StartError

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
# The exhaustive search of convolution algorithms costs seconds for every batch size.
# An arena that doubles holds twice what the largest batch takes, for ever.
_CUDA_OPTIONS = {
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
}
# TF32 would round the inputs of fp32 products to 10 bits; who wants speed asks for fp16, whose
# convolutions would lose the tensor cores with it.
_EXACT = {"use_tf32": "0"}
# Before it is a signature in C++, of a thousand characters; behind it are host and source file.
_SAID = re.compile(
    r"(?:\b(?:CUDA|CUDNN|CUDNN_FE|CUBLAS) failure |Please install )(?:(?! ; GPU=).)*"
)
SLOWER_ON_CPU = ["SkipLayerNormFusion"]
"""Rewrites of ONNX Runtime that cost more than they save. The kernel of this one goes number by
number: five times the time of an Add and a vectorised LayerNormalization, a fifth of what an
encoder of texts takes."""
# Best first: a provider leaves what it cannot run to the next.
PROVIDERS: dict[Device, tuple[tuple[str, dict[str, str]], ...]] = {
    "cpu": ((_CPU, {}),),
    "openvino": ((_OPENVINO, {}), (_CPU, {})),
    "cuda": ((_CUDA, _CUDA_OPTIONS), (_CPU, {})),
    "tensorrt": ((_TENSORRT, {}), (_CUDA, _CUDA_OPTIONS), (_CPU, {})),
}


@dataclass(frozen=True)
class Place:
    """Where and how a graph runs.

    Attributes:
        device: on exactly this one.
        precision: which variant; a graph that lacks it runs in fp32.
        threads: CPU threads of one run.
        runs: that may go on at the same time.
        spinning: the threads of a run wait for each other awake. That is the sooner answer where
            a run has the cores for itself; elsewhere it takes them from other runs.
    """

    device: Device
    precision: RunPrecision
    threads: int = 1
    runs: int = 1
    spinning: bool = False


def open_session(bundle: Bundle, graph: GraphName, place: Place) -> ort.InferenceSession:
    """Opens one graph on exactly the device that is asked for.

    Args:
        bundle: where the graph is.
        graph: which graph.
        place: where and how it has to run.

    Raises:
        StartError: the device does not work here.
        BundleError: the graph is damaged, or keeps weights outside the bundle.
    """
    precision = bundle.image_precision(graph, place.precision)
    model = bundle.read_graph(graph, precision)
    options = _choose_options(graph, place)
    device = place.device
    try:
        session = ort.InferenceSession(
            model,
            options,
            # The plug-in is among the options.
            providers=None if device == "openvino" else list_providers(device, precision),
            enable_fallback=0,
            disabled_optimizers=SLOWER_ON_CPU if device == "cpu" else [],
        )
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        if device not in CPU_DEVICES:
            raise StartError(f"device {device} cannot open {graph}: {first_line(error)}") from error
        raise BundleError(f"{graph} is not a usable ONNX graph: {first_line(error)}") from error
    provider = PROVIDERS[device][0][0]
    if session.get_providers()[0] != provider:
        raise StartError(
            f"device {device}: {provider} does not start on this machine; "
            "ONNX Runtime's own message before this one says why"
        )
    return session


def list_providers(device: Device, precision: RunPrecision) -> list[tuple[str, dict[str, str]]]:
    """Returns the execution providers of a device with their options, best first."""
    more = _EXACT if precision != "fp16" else {}
    return [
        (name, {**options, **more} if name == _CUDA else options)
        for name, options in PROVIDERS[device]
    ]


def _choose_options(graph: GraphName, place: Place) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = place.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if place.device == "cpu":
        with _arena_lock:
            _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    # A pattern takes one block for all of a shape's second run, and a GPU's arena keeps what the
    # first run took beside it: half as much memory again, after the warm-up.
    options.enable_mem_pattern = place.device in CPU_DEVICES
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "1" if place.spinning else "0"
    )
    options.add_session_config_entry("session.force_spinning_stop", "1")  # at the end of a run
    # A graph may name files that hold its weights. Those are not among the verified files,
    # so they are looked for where there can be none.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", os.devnull
    )
    if place.device == "openvino":
        add_openvino(
            options,
            threads=place.threads,
            runs=place.runs,
            bf16=place.precision == "bf16",
            sizes_vary=graph == "open_head",
        )
    return options


_arena_lock = Lock()  # engine and encoders open at the same time


@cache
def _share_arena() -> None:
    """Makes one arena for all sessions: each one's own would keep what its largest run took."""
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


def first_line(error: BaseException) -> str:
    """Returns what a message of ONNX Runtime says, without where in its code it was said."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    said = _SAID.search(line)
    return said.group() if said else line


def check_tensors(
    graph: GraphName, found: Sequence[Any], **wanted: tuple[str, tuple[int | None, ...]]
) -> None:
    """Checks that a graph has these inputs (or outputs) and no others.

    Args:
        graph: for the message.
        found: the session's inputs or outputs.
        **wanted: name -> element type in ONNX Runtime's words, and the dimensions after the
            first, which has to be dynamic; None is any size.

    Raises:
        BundleError: something differs.
    """
    if {tensor.name for tensor in found} != set(wanted):
        names = ", ".join(tensor.name for tensor in found)
        raise BundleError(
            f"{graph} has {names or 'nothing'} where it should have only {', '.join(wanted)}"
        )
    for tensor in found:
        kind, sizes = wanted[tensor.name]
        if tensor.type != f"tensor({kind})":
            raise BundleError(f"{graph}: {tensor.name} is {tensor.type}, not tensor({kind})")
        _check_shape(graph, tensor, sizes)


def _check_shape(graph: GraphName, tensor: Any, sizes: tuple[int | None, ...]) -> None:  # noqa: ANN401 - ONNX Runtime has no types
    shape = list(tensor.shape)
    fits = len(shape) == 1 + len(sizes) and not isinstance(shape[0], int)
    for actual, wanted in zip(shape[1:], sizes, strict=False):
        # A size that the graph leaves open is checked by the warm-up.
        fits = fits and (wanted is None or not isinstance(actual, int) or actual == wanted)
    if not fits:
        wanted_text = ", ".join("*" if size is None else str(size) for size in sizes)
        raise BundleError(f"{graph}: {tensor.name} has shape {shape}, not [B, {wanted_text}]")
