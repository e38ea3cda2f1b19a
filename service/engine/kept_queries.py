"""Label queries that stay in the memory of a GPU, so that batches need not bring them again.

In: a matrix of queries, float32 [L, K], in the chunks that the open head takes. Out: the same
chunks, in the GPU's memory where they are kept there. Next: `lanes.py`, which runs the head.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import onnxruntime as ort

from service.engine.heads import QueryArray
from service.engine.tensors import Tensor

_MOST_BYTES = 512 * 2**20
"""Room for 88,000 labels of the default bundle. ONNX Runtime takes such memory in blocks that
double, so a GPU may have to give twice as much."""


@dataclass(frozen=True)
class _Known:
    """A matrix that was met.

    Attributes:
        matrix: does not keep it.
        chunks: float32 [L, K] in parts, in the GPU's memory; none where it was met only once.
        num_bytes: of the chunks.
    """

    matrix: weakref.ref[QueryArray]
    chunks: tuple[ort.OrtValue, ...] = ()
    num_bytes: int = 0


class KeptQueries:
    """Matrices by their identity, each from the second run that asks for it until it is gone.

    A label set has one matrix for as long as it lives, and a request's own labels have one that
    mostly runs once: that costs no memory here and pushes nobody out. Where the bytes do not
    suffice, who was not asked for the longest makes room; a GPU that lacks them is asked for half.

    A GPU's engine has one worker, so the lock is for tests and whoever runs an engine by himself.
    The last reference to a matrix may go in any thread, also within the lock: what that calls
    takes no lock and is one step, which the interpreter does not divide. Another matrix can have
    the identity only after it.
    """

    def __init__(self, memory: str, most_bytes: int = _MOST_BYTES) -> None:
        """Keeps nothing yet.

        Args:
            memory: ONNX Runtime's name of the device's memory.
            most_bytes: of all chunks together.
        """
        self._memory = memory
        self._most_bytes = most_bytes
        self._known: dict[int, _Known] = {}  # by `id`, the one that was asked for last behind
        self._lock = Lock()

    def find(self, queries: QueryArray, chunks: Sequence[QueryArray]) -> Sequence[Tensor]:
        """Returns the chunks, in the GPU's memory where they are kept there.

        Args:
            queries: float32 [L, K]; one that can be written to may change, and is not kept.
            chunks: its rows, in parts.
        """
        if queries.flags.writeable or queries.nbytes > self._most_bytes:
            return chunks
        key = id(queries)
        with self._lock:
            known = self._known.pop(key, None)
            if known is None:
                forget = self._known.pop
                gone = weakref.ref(queries, lambda _: forget(key, None))
                known = _Known(gone)
            elif not known.chunks:
                known = self._bring(known, chunks)
            self._known[key] = known
        return known.chunks or chunks

    def _bring(self, known: _Known, chunks: Sequence[QueryArray]) -> _Known:
        """Returns a matrix with its chunks in the GPU's memory; without where that is full."""
        num_bytes = sum(chunk.nbytes for chunk in chunks)
        others = self._make_room(num_bytes)
        try:
            there = tuple(_copy(chunk, self._memory) for chunk in chunks)
        except Exception:  # ONNX Runtime's exceptions have no common base
            # Runs bring it along, as they would without us; where the GPU is lost, they tell.
            self._most_bytes = (others + num_bytes) // 2
            return known
        return _Known(known.matrix, there, num_bytes)

    def _make_room(self, num_bytes: int) -> int:
        """Lets go of what is too much beside these bytes; returns the bytes that are left."""
        entries = list(self._known.items())
        kept_bytes = sum(known.num_bytes for _, known in entries)
        for key, known in entries:
            if kept_bytes + num_bytes > self._most_bytes:
                self._known.pop(key, None)
                kept_bytes -= known.num_bytes
        return kept_bytes


def _copy(chunk: QueryArray, memory: str) -> ort.OrtValue:
    there = ort.OrtValue.ortvalue_from_shape_and_type(list(chunk.shape), np.float32, memory)
    there.update_inplace(chunk)
    return there
