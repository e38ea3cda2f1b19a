"""An encoder for batches of one size, whose kernels CUDA captures once and replays as one graph.

In: images uint8 [B, H, W, 3] of that size. Out: tokens [B, S, C], which stay on the GPU. Where a
network is many small kernels, starting them one by one takes longer than they do. Next: `lanes.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
import onnxruntime as ort

from service.errors import StartError
from service.images.decode import PixelArray


class Replay:
    """Runs one encoder, always from and to the same places of the GPU's memory.

    A captured graph knows the addresses that it was captured with. So one thread at a time may
    run it, and its tokens hold until the next run. ONNX Runtime keeps the graph for the thread
    that it captured it in, and captures anew for any other: so all runs go on in a thread of its
    own. While it captures, nothing else of this process may use the GPU.
    """

    def __init__(self, encoder: ort.InferenceSession, size: int, memory: str) -> None:
        """Takes the memory that images and tokens will lie in.

        Args:
            encoder: opened with `Place.cuda_graphs`; ONNX Runtime captures its first runs.
            size: B, the only batch size that it will meet.
            memory: ONNX Runtime's name of the memory that images and tokens lie in.

        Raises:
            StartError: how many tokens an image has is not known before a run.
        """
        (images,), (tokens,) = encoder.get_inputs(), encoder.get_outputs()
        if not all(isinstance(length, int) for length in tokens.shape[1:]):
            raise StartError(f"CUDA graphs: the encoder's tokens have open sizes {tokens.shape}")
        self._encoder = encoder
        self._images, self._tokens = (
            ort.OrtValue.ortvalue_from_shape_and_type([size, *tensor.shape[1:]], kind, memory)
            for tensor, kind in ((images, np.uint8), (tokens, np.float32))
        )
        self._binding = encoder.io_binding()
        self._binding.bind_ortvalue_input(images.name, self._images)
        self._binding.bind_ortvalue_output(tokens.name, self._tokens)
        self._calls = SimpleQueue[Callable[[], None] | None]()
        # A run that never ends must not keep the process from ending.
        threading.Thread(
            target=_work, args=(self._calls,), name=f"replay-{size}", daemon=True
        ).start()
        weakref.finalize(self, self._calls.put, None)

    def run(self, images: PixelArray) -> ort.OrtValue:
        """Returns the tokens of a batch, float32 [B, S, C]."""
        done = Future[None]()

        def replay() -> None:
            try:
                self._images.update_inplace(images)
                self._encoder.run_with_iobinding(self._binding)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        self._calls.put(replay)
        done.result()
        return self._tokens


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    """Calls what is put there, until that is None."""
    while (call := calls.get()) is not None:
        call()
        del call  # it knows its replay, which could not go while this waits
