"""On a GPU the engine gives what it gives on the CPU; run with `-m gpu` where there is one."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle import Bundle
from service.engine import open_engine
from service.selection import Head
from tests.tiny_bundle import QUERY_WIDTH, SIDE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in ort.get_available_providers(),
        reason="ONNX Runtime has no CUDA here",
    ),
]

TOLERANCE = 1e-3


def test_logits_equal_the_cpus_in_any_mixture_of_heads(open_bundle: Bundle) -> None:
    gpu = open_engine(open_bundle, device="cuda", max_batch_size=6)
    cpu = open_engine(open_bundle, device="cpu", max_batch_size=6)
    gpu.warm_up(QUERY_WIDTH)
    stream = np.random.default_rng(0)
    queries = stream.normal(size=(9, QUERY_WIDTH)).astype(np.float32)
    mixture: list[list[Head]] = [[None], [queries], [None, queries]]
    for count in range(1, 7):
        images = stream.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        asked = [mixture[i % 3] for i in range(count)]
        found, wanted = gpu.run(images, asked), cpu.run(images, asked)
        for ours, theirs in zip(found, wanted, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, atol=TOLERANCE, rtol=0)
