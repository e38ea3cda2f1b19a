"""Runs graphs on tensors in a device's memory (in tests the CPU's), and caches queries there."""

import math
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from service.engine.heads import QueryArray

# CUDA allocates at multiples of this. TensorRT requires it, and kernels that read several numbers
# at once rely on a part of it.
_ALIGNMENT_BYTES = 256
_ITEM_BYTES = np.dtype(np.float32).itemsize
# 88,000 labels of the default bundle. ONNX Runtime's blocks double, so a GPU may need twice this.
_MAX_CACHED_BYTES = 512 * 2**20


class Rows(NamedTuple):
    """Rows `start` to `stop` - 1 of a tensor float32 [B, ...], read in place on its device."""

    whole: ort.OrtValue
    start: int
    stop: int


Tensor: TypeAlias = NDArray[Any] | ort.OrtValue | Rows


def cut_rows(whole: ort.OrtValue, first: int, last: int) -> Rows:
    """Returns rows `first` to `last`, and the rows before them that the alignment requires."""
    row_bytes = _ITEM_BYTES * math.prod(whole.shape()[1:])
    step = _ALIGNMENT_BYTES // math.gcd(_ALIGNMENT_BYTES, row_bytes)
    return Rows(whole, first - first % step, last + 1)


def run_graph(
    session: ort.InferenceSession, outputs: list[str], **inputs: Tensor
) -> list[NDArray[Any]]:
    """Runs a graph and copies its outputs to the memory of the CPU."""
    values = (
        session.run(outputs, inputs)
        if all(isinstance(value, np.ndarray) for value in inputs.values())
        else [value.numpy() for value in run_bound(session, outputs, "cpu", **inputs)]
    )
    return [np.asarray(value) for value in values]


def run_bound(
    session: ort.InferenceSession, outputs: list[str], device: str, **inputs: Tensor
) -> list[ort.OrtValue]:
    """Runs a graph on inputs in any memory; the outputs stay in the memory of `device`."""
    binding = session.io_binding()
    for name, value in inputs.items():
        if isinstance(value, Rows):
            _, *others = value.whole.shape()
            start = value.whole.data_ptr() + value.start * _ITEM_BYTES * math.prod(others)
            shape = [value.stop - value.start, *others]
            # Device 0: a process uses one GPU.
            binding.bind_input(name, value.whole.device_name(), 0, np.float32, shape, start)
        elif isinstance(value, ort.OrtValue):
            binding.bind_ortvalue_input(name, value)
        else:
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
    for name in outputs:
        binding.bind_output(name, device)
    session.run_with_iobinding(binding)
    values: list[ort.OrtValue] = binding.get_outputs()
    return values


class _Entry(NamedTuple):
    matrix: weakref.ref[QueryArray]
    chunks: tuple[ort.OrtValue, ...]
    num_bytes: int


class QueryCache:
    """Copies of label sets' queries in GPU memory, so that batches need not send them.

    A set's matrix is the key, by identity, with the number of chunks that it is cut into: the open
    head and the screened head cut it differently. The next load evicts entries of matrices that are
    gone, and over `max_bytes` the least recently used. If the GPU is full, the limit becomes half
    of the bytes that did not fit. `memory` is ONNX Runtime's name of the GPU's memory.
    """

    def __init__(self, memory: str, max_bytes: int = _MAX_CACHED_BYTES) -> None:
        self.memory = memory
        self._max_bytes = max_bytes
        self._entries: dict[tuple[int, int], _Entry] = {}  # least recently used first
        self._lock = Lock()

    def find(self, queries: QueryArray, chunks: Sequence[QueryArray]) -> Sequence[Tensor]:
        """Returns the chunks of a matrix [L, K], in GPU memory if it is cached.

        A writable matrix is not cached: it may change, and those of candidate labels are used once.
        """
        if queries.flags.writeable or queries.nbytes > self._max_bytes:
            return chunks
        key = (id(queries), len(chunks))
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None or entry.matrix() is not queries:  # another one had this `id`
                entry = self._load(queries, chunks)
            if entry is None:
                return chunks
            self._entries[key] = entry
        return entry.chunks

    def _load(self, queries: QueryArray, chunks: Sequence[QueryArray]) -> _Entry | None:
        self._entries = {k: old for k, old in self._entries.items() if old.matrix() is not None}
        wanted_bytes = queries.nbytes + sum(entry.num_bytes for entry in self._entries.values())
        for key in [*self._entries]:
            if wanted_bytes > self._max_bytes:
                wanted_bytes -= self._entries.pop(key).num_bytes
        try:
            copies = tuple(_copy(chunk, self.memory) for chunk in chunks)
        except Exception:  # ONNX Runtime's exceptions have no common base
            # Batches then send the queries; if the GPU is lost, their runs raise an error.
            self._max_bytes = wanted_bytes // 2
            return None
        return _Entry(weakref.ref(queries), copies, queries.nbytes)


def _copy(chunk: QueryArray, memory: str) -> ort.OrtValue:
    copy = ort.OrtValue.ortvalue_from_shape_and_type(list(chunk.shape), chunk.dtype, memory)
    copy.update_inplace(chunk)
    return copy
