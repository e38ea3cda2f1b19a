"""OpenVINO's plug-in for ONNX Runtime, which the extra `openvino` brings.

In: the options of a session. Out: the same options, with the processor as OpenVINO runs it before
ONNX Runtime's own kernels. Where the processor multiplies bfloat16 by itself, OpenVINO can run an
fp32 graph so, in a fraction of the time. Next: `sessions.py`, which opens the session.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import onnxruntime as ort

from service.errors import StartError

PROVIDER = "OpenVINOExecutionProvider"
_PLUGIN = "onnxruntime_ep_openvino"
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
_KERNELS_KEPT = 64
"""Kernels that are remembered where sizes vary. OpenVINO makes one for each size that it meets and
keeps 5,000 of them: a gigabyte after some hundred lists of different length."""
_PROCESSOR_FILE = Path("/proc/cpuinfo")


def is_installed() -> bool:
    """Tells whether the plug-in is in this environment."""
    return find_spec(_PLUGIN) is not None


def multiplies_bf16(description: str | None = None) -> bool:
    """Tells whether the processor has instructions for products of bfloat16.

    Args:
        description: what Linux says of the processor; None reads it.
    """
    if description is None:
        description = _PROCESSOR_FILE.read_text() if _PROCESSOR_FILE.exists() else ""
    return not _BF16_FLAGS.isdisjoint(description.split())


def add_openvino(
    options: ort.SessionOptions, *, threads: int, runs: int, bf16: bool, sizes_vary: bool
) -> None:
    """Puts OpenVINO before the kernels of ONNX Runtime.

    Args:
        options: of the session to open.
        threads: of one run.
        runs: that may go on at the same time, each with threads of its own.
        bf16: whether products take bfloat16; sums are float32.
        sizes_vary: whether the graph's inputs come in more sizes than those of a batch.

    Raises:
        StartError: the plug-in does not work here.
    """
    # Left to itself it counts the host's cores, whatever the container may use.
    settings = {
        "INFERENCE_NUM_THREADS": str(threads * runs),
        "NUM_STREAMS": str(runs),
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "ENABLE_CPU_PINNING": "NO",  # several sessions would be pinned to the same cores
    }
    if sizes_vary:
        settings["CPU_RUNTIME_CACHE_CAPACITY"] = str(_KERNELS_KEPT)
    options.add_provider_for_devices(
        [find_processor()], {"load_config": json.dumps({"CPU": settings})}
    )


def find_processor() -> ort.OrtEpDevice:
    """Returns the device that is the CPU.

    Raises:
        StartError: the plug-in does not load, or does not take this processor.
    """
    _load_plugin()
    for device in ort.get_ep_devices():
        if device.ep_name == PROVIDER and device.ep_metadata.get("ov_device") == "CPU":
            return device
    # OpenVINO itself runs on others too: github.com/microsoft/onnxruntime/pull/31981.
    raise StartError("device openvino: the plug-in takes Intel's processors alone")


@cache
def _load_plugin() -> None:
    import onnxruntime_ep_openvino as plugin

    try:
        ort.register_execution_provider_library(_PLUGIN, plugin.get_library_path())
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise StartError(f"device openvino: the plug-in does not load: {error}") from error
