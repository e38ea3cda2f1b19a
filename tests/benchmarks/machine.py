"""The machine that a benchmark runs on: one line about it, and the memory of its GPUs."""

import math
import platform
import re
import subprocess
from pathlib import Path

import onnxruntime as ort

from service.scheduling.cpu import count_cores, read_cpu_quota


def describe_machine() -> str:
    """Returns one line: processor, cores, quota, GPUs with their drivers, and versions."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    quota = read_cpu_quota()
    gpus = (line.split(", ") for line in _ask_gpus("name,driver_version"))
    return "; ".join((
        model[1] if model else platform.machine(),
        f"{count_cores()} usable cores, quota {'none' if quota == math.inf else f'{quota:g}'}",
        ", ".join(f"{name} (driver {driver})" for name, driver in gpus) or "no GPU",
        f"ONNX Runtime {ort.__version__}, Python {platform.python_version()}",
    ))  # fmt: skip


def read_gpu_mib() -> float:
    """Returns the memory in use on all GPUs together; 0 without `nvidia-smi`."""
    return sum(map(float, _ask_gpus("memory.used")))


def _ask_gpus(fields: str) -> list[str]:
    command = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()
