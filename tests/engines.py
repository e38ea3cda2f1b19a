"""What tests of engines on several devices have in common.

In: an engine and the bundle that it runs. Out: nothing where it gives what the CPU gives; and the
marks of tests that need more than a CPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from service.bundle import Bundle
from service.engine import Engine, open_engine
from service.openvino import is_installed, multiplies_bf16
from service.selection import Head
from tests.tiny_bundle import QUERY_WIDTH, random_images

needs_openvino = pytest.mark.skipif(not is_installed(), reason="the extra `openvino` is not here")
needs_bf16 = pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor has no products of bfloat16"
)


def assert_gives_the_cpus_logits(
    engine: Engine, bundle: Bundle, *, num_queries: int, tolerance: float
) -> None:
    """Checks every batch size, in any mixture of the two heads.

    Args:
        engine: runs the bundle in fp32, up to six images at a time.
        bundle: a tiny one with both heads.
        num_queries: labels of the open head.
        tolerance: how far a logit may be off.
    """
    cpu = open_engine(bundle, device="cpu", precision="fp32", max_batch_size=6)
    queries = np.random.default_rng(0).normal(size=(num_queries, QUERY_WIDTH)).astype(np.float32)
    mixture: list[list[Head]] = [[None], [queries], [None, queries]]
    for count in range(1, 7):
        images = random_images(count, count)
        asked = [mixture[i % 3] for i in range(count)]
        found = engine.run(images, asked, alone=count == 1)
        for ours, theirs in zip(found, cpu.run(images, asked), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, atol=tolerance, rtol=0)
