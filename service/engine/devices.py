"""Which devices work in this environment, and in which precision a bundle runs on them."""

import contextlib
import logging
import platform
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from service.bundle.card import CPU_DEVICES, Device, RunPrecision
from service.bundle.reader import Bundle
from service.errors import StartError

CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
# An exhaustive search of convolution algorithms takes seconds for every batch size.
# An arena that doubles keeps twice the memory of the largest batch.
_CUDA_OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
# Best first: operators that a provider cannot run go to the next.
PROVIDERS: dict[Device, tuple[tuple[str, dict[str, str]], ...]] = {
    "cpu": ((_CPU, {}),),
    "openvino": ((_OPENVINO, {}), (_CPU, {})),
    "cuda": ((CUDA, _CUDA_OPTIONS), (_CPU, {})),
    "tensorrt": (("TensorrtExecutionProvider", {}), (CUDA, _CUDA_OPTIONS), (_CPU, {})),
}
_ON = frozenset({"1", "true", "True"})  # as ONNX Runtime reads them
_OPENVINO_PLUGIN = "onnxruntime_ep_openvino"
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
_VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni"})
_CPU_INFO = Path("/proc/cpuinfo")

logger = logging.getLogger(__name__)


def check_device(device: Device) -> None:
    """Raises `StartError` if this environment lacks the packages or the provider of a device."""
    if device == "openvino":
        if not has_openvino():
            step = "pip install -e '.[openvino]' in the checkout"
            raise StartError(f"device openvino: the extra `openvino` is not installed: {step}")
        find_openvino_cpu()
        return
    if device not in CPU_DEVICES:
        # Finds CUDA and cuDNN that are installed as Python packages. It prints missing libraries to
        # stdout, which is for a command's answer.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()
    provider = PROVIDERS[device][0][0]
    if provider not in ort.get_available_providers():
        raise StartError(f"device {device}: this ONNX Runtime is built without {provider}")


def choose_precision(
    bundle: Bundle, device: Device, asked: Literal["auto"] | RunPrecision
) -> RunPrecision:
    """Returns the precision to run in. Raises `StartError` if `asked` does not work here.

    `auto` is the bundle's choice, fp32 instead of int8 on a processor without VNNI, and bf16
    instead of fp32 if OpenVINO and the processor have it.
    """
    if asked == "auto":
        stored = bundle.default_precision(device)
        slow = stored == "int8" and device in CPU_DEVICES and not multiplies_int8()
        if slow and "fp32" in bundle.precisions():
            logger.info("precision auto: fp32 instead of int8, because this processor has no VNNI")
            stored = "fp32"
        faster = device == "openvino" and stored == "fp32" and multiplies_bf16()
        return "bf16" if faster else stored
    if asked == "bf16" and "fp32" in bundle.precisions():
        if device != "openvino":
            raise StartError(f"precision bf16: device {device} does not support it, use openvino")
        if not multiplies_bf16():
            raise StartError("precision bf16: this processor has no instructions for it, use fp32")
    elif asked not in bundle.precisions():
        raise StartError(f"precision {asked}: the bundle has {', '.join(bundle.precisions())}")
    elif asked == "int8" and device == "openvino" and not multiplies_int8():
        raise StartError("precision int8: openvino loses accuracy on this processor: use fp32")
    return asked


def parse_cuda_options(text: str | None, device: Device) -> dict[str, str]:
    """Reads `NAME=VALUE,...`; ONNX Runtime checks the names when it opens a session.

    Raises `StartError` if the device has no CUDA provider, or if an option cannot work here.
    """
    options: dict[str, str] = {}
    if not text:
        return options
    if device in CPU_DEVICES:
        raise StartError(f"cuda_options: device {device} has none: set device cuda, or unset them")
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if not (name and value) or name in options:
            raise StartError(f"cuda_options: {part!r} must be NAME=VALUE, each name once")
        options[name] = value
    if (number := options.get("device_id", "0")) != "0":
        raise StartError(
            f"cuda_options: device_id must be 0; it is {number}: set CUDA_VISIBLE_DEVICES instead"
        )
    if options.get("enable_cuda_graph") in _ON:
        reason = "a reload would end the service"
        raise StartError(f"cuda_options: enable_cuda_graph is not supported, {reason}: unset it")
    if options.get("fuse_conv_bias") in _ON and options.get("prefer_nhwc") not in _ON:
        step = "set prefer_nhwc=1 too, or unset it"
        raise StartError(f"cuda_options: fuse_conv_bias gives wrong scores alone: {step}")
    return options


def may_use_gpu(device: Literal["auto"] | Device) -> bool:
    """Whether the model may run on a GPU: `auto` may, if this ONNX Runtime is built for one."""
    if device == "auto":
        return CUDA in ort.get_available_providers()
    return device not in CPU_DEVICES


def has_openvino() -> bool:
    """Whether ONNX Runtime's plug-in for OpenVINO is installed."""
    return find_spec(_OPENVINO_PLUGIN) is not None


def multiplies_bf16() -> bool:
    """Whether the processor multiplies bfloat16."""
    return not _BF16_FLAGS.isdisjoint(_read_cpu_flags())


def multiplies_int8() -> bool:
    """Whether int8 is exact and faster than fp32: without VNNI, sums of x86 saturate at 16 bits."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return not is_x86 or not _VNNI_FLAGS.isdisjoint(_read_cpu_flags())


def _read_cpu_flags() -> list[str]:
    return _CPU_INFO.read_text().split() if _CPU_INFO.exists() else []


def find_openvino_cpu() -> ort.OrtEpDevice:
    """Returns OpenVINO's CPU device. Raises `StartError` if there is none."""
    _load_openvino()
    for device in ort.get_ep_devices():
        if device.ep_name == _OPENVINO and device.ep_metadata.get("ov_device") == "CPU":
            return device
    # OpenVINO itself runs on others too: github.com/microsoft/onnxruntime/pull/31981.
    raise StartError("device openvino: the plug-in supports Intel processors only, use cpu")


@cache
def _load_openvino() -> None:
    import onnxruntime_ep_openvino as plugin

    try:
        ort.register_execution_provider_library(_OPENVINO_PLUGIN, plugin.get_library_path())
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise StartError(f"device openvino: the plug-in does not load: {error}") from error
