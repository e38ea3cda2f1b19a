"""A peer: mosec around bare ONNX Runtime sessions of a bundle, with our decoder.

    MOSEC_PORT=8000 python -m tests.benchmarks.mosec_server BUNDLE cuda fp16

On a CPU every process decodes and runs the model. On a GPU several processes decode for one that
runs the model, in batches padded to the largest size: CUDA plans for seconds at each new size.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mosec import Server, Worker

from service.bundle.reader import load_bundle
from service.engine.devices import check_device, choose_precision
from service.engine.sessions import SessionConfig, open_session
from service.images.decode import PixelArray, decode_image
from service.pipeline.scoring import compute_scores
from service.scheduling.cpu import count_cores

_MAX_PIXELS = 50_000_000
_WAIT_MS = 2
_CPU_BATCH_SIZE, _GPU_BATCH_SIZE = 4, 32


class Decode(Worker):
    def __init__(self) -> None:
        super().__init__()
        self._contract = load_bundle(Path(sys.argv[1])).card.input

    def deserialize(self, data: bytes) -> bytes:
        return data  # the body of the request

    def forward(self, data: bytes) -> PixelArray:
        return decode_image(data, self._contract, _MAX_PIXELS).pixels


class Infer(Worker):
    def __init__(self) -> None:
        super().__init__()
        bundle, device, precision = load_bundle(Path(sys.argv[1])), *sys.argv[2:]
        check_device(device)  # loads CUDA's libraries
        config = SessionConfig(device, choose_precision(bundle, device, precision))
        self._size = _GPU_BATCH_SIZE if device == "cuda" else 0
        self._encoder = open_session(bundle, "encoder", config)
        self._head = open_session(bundle, "trained_head", config)

    def forward(self, data: list[PixelArray]) -> list[Any]:
        black = [np.zeros_like(data[0])] * (self._size - len(data))
        (tokens,) = self._encoder.run(["tokens"], {"images": np.stack([*data, *black])})
        (logits,) = self._head.run(["logits"], {"tokens": tokens})
        scores = compute_scores(logits[: len(data)], "sigmoid")
        best = np.argsort(-scores)[:, :10].tolist()
        return [
            [{"label": f"label {place}", "score": float(row[place])} for place in places]
            for row, places in zip(scores, best, strict=True)
        ]

    def serialize(self, data: object) -> bytes:
        return json.dumps(data).encode()


class DecodeAndInfer(Decode, Infer):
    def forward(self, data: list[bytes]) -> list[Any]:
        return Infer.forward(self, [Decode.forward(self, photo) for photo in data])


def main() -> None:
    """Serves on `MOSEC_PORT`."""
    server, cores = Server(), count_cores()
    if sys.argv[2] == "cuda":
        # 10 of 16 cores; the others are for the model's process, mosec itself and the load.
        server.append_worker(Decode, max(1, cores * 5 // 8))
        server.append_worker(Infer, 1, _GPU_BATCH_SIZE, _WAIT_MS)
    else:
        server.append_worker(DecodeAndInfer, max(2, cores - 1), _CPU_BATCH_SIZE, _WAIT_MS)
    server.run()


if __name__ == "__main__":
    main()
