"""Tensors in the memory of a device, and runs of a graph that read and leave them there.

In: a session and its inputs, each in the memory of the CPU or of a device. Out: its outputs, in
whichever is asked for. Next: `lanes.py`, which leads a batch through the graphs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

_ALIGNMENT_BYTES = 256
"""Where tensors begin that CUDA allocates. TensorRT asks for it, and kernels that read several
numbers at once rely on a part of it."""
_BYTES = np.dtype(np.float32).itemsize


class Rows(NamedTuple):
    """Consecutive rows of a tensor, read where they lie in the memory of a device.

    Attributes:
        whole: the tensor, float32 [B, ...].
        start: the first row.
        stop: the row behind the last.
    """

    whole: ort.OrtValue
    start: int
    stop: int


Tensor: TypeAlias = NDArray[Any] | ort.OrtValue | Rows


def cut_rows(whole: ort.OrtValue, first: int, last: int) -> Rows:
    """Returns the rows from `first` to `last`, and those before that their alignment takes.

    Args:
        whole: float32 [B, ...], in the memory of a device.
        first: 0..B-1.
        last: `first`..B-1.
    """
    row_bytes = _BYTES * math.prod(whole.shape()[1:])
    step = _ALIGNMENT_BYTES // math.gcd(_ALIGNMENT_BYTES, row_bytes)
    return Rows(whole, first - first % step, last + 1)


def run_graph(
    session: ort.InferenceSession, outputs: list[str], **inputs: Tensor
) -> list[NDArray[np.float32]]:
    """Runs a graph; the results are copied to the memory of the CPU."""
    found = (
        session.run(outputs, inputs)
        if all(isinstance(value, np.ndarray) for value in inputs.values())
        else [value.numpy() for value in run_bound(session, outputs, "cpu", **inputs)]
    )
    return [np.asarray(value, np.float32) for value in found]


def run_bound(
    session: ort.InferenceSession, outputs: list[str], device: str, **inputs: Tensor
) -> list[ort.OrtValue]:
    """Runs a graph; the results stay on the device that is named, and inputs where they are."""
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, Rows):
            _bind_rows(binding, name, value)
        elif isinstance(value, ort.OrtValue):
            binding.bind_ortvalue_input(name, value)
        else:
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
    for name in outputs:
        binding.bind_output(name, device)
    session.run_with_iobinding(binding)
    found: list[ort.OrtValue] = binding.get_outputs()
    return found


def _bind_rows(binding: ort.IOBinding, name: str, rows: Rows) -> None:
    _, *others = rows.whole.shape()
    binding.bind_input(
        name,
        rows.whole.device_name(),
        0,  # a process has one GPU
        np.float32,
        [rows.stop - rows.start, *others],
        rows.whole.data_ptr() + rows.start * _BYTES * math.prod(others),
    )
