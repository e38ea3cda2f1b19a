"""On a GPU the engine gives what it gives on the CPU; run with `-m gpu` where there is one."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from service.bundle import Bundle
from service.engine import open_engine
from tests.engines import assert_gives_the_cpus_logits
from tests.tiny_bundle import QUERY_WIDTH

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
    gpu.warm_up(QUERY_WIDTH)
    assert_gives_the_cpus_logits(gpu, open_bundle, num_queries=9, tolerance=TOLERANCE)
