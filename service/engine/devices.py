"""Whether a device is here, and in which precision a bundle runs on it.

In: a device and a precision as asked for, which may be `auto`. Out: the precision that runs, or a
`StartError` that tells what is missing. Next: `engine.py`, which opens the graphs there.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Literal

import onnxruntime as ort

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.reader import Bundle
from service.engine.openvino import find_processor, is_installed, multiplies_bf16
from service.engine.sessions import PROVIDERS
from service.errors import StartError


def check_device(device: Device) -> None:
    """Finds out whether this environment has what runs a device.

    Raises:
        StartError: it has not; a device that is there may still fail to open a graph.
    """
    if device == "openvino":
        if not is_installed():
            raise StartError("device openvino: the extra `openvino` is not installed")
        find_processor()
        return
    if device not in CPU_DEVICES:
        # CUDA and cuDNN that came as Python packages are found in no other way. What is not found
        # is printed, to where a command's answer goes.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()
    provider = PROVIDERS[device][0][0]
    if provider not in ort.get_available_providers():
        raise StartError(f"device {device}: this ONNX Runtime is built without {provider}")


def choose_precision(
    bundle: Bundle, device: Device, asked: Literal["auto"] | RunPrecision
) -> RunPrecision:
    """Returns the precision that runs; `auto` is the bundle's choice for the device.

    Where the bundle's choice is fp32 and OpenVINO's kernels multiply bfloat16, it is bf16.

    Raises:
        StartError: bundle, device or processor lacks what is asked for.
    """
    if asked == "auto":
        stored = bundle.default_precision(device)
        faster = device == "openvino" and stored == "fp32" and multiplies_bf16()
        return "bf16" if faster else stored
    if asked == "bf16":
        _check_bf16(device)
    elif asked not in bundle.precisions():
        raise StartError(f"precision {asked}: the bundle has {', '.join(bundle.precisions())}")
    return asked


def _check_bf16(device: Device) -> None:
    if device != "openvino":
        raise StartError(f"precision bf16: device {device} has none, openvino does")
    if not multiplies_bf16():
        raise StartError("precision bf16: this processor has no instructions for it")
