"""What tests of engines on several devices have in common.

In: an engine and the bundle that it runs. Out: nothing where it gives what the CPU gives; and the
marks of tests that need more than a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle.reader import Bundle
from service.engine import session_set
from service.engine.devices import check_device, multiplies_bf16
from service.engine.engine import Engine, open_engine
from service.engine.heads import Head, HeadResults
from service.engine.sessions import PROVIDERS, first_line
from service.errors import StartError
from tests.support.tiny_bundle import random_images, random_queries


def _why_no_openvino() -> str:
    """Returns why its tests cannot run here; nothing where they can."""
    try:
        check_device("openvino")
    except StartError as error:
        return str(error)
    return ""


def why_no_gpu() -> str:
    """Returns why ONNX Runtime has no GPU here; nothing where it has, whatever it can run."""
    try:
        check_device("cuda")
        ort.OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cuda")
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        return first_line(error)
    return ""


needs_openvino = pytest.mark.skipif(bool(_why_no_openvino()), reason=_why_no_openvino())
needs_bf16 = pytest.mark.skipif(
    not multiplies_bf16(), reason="this processor has no products of bfloat16"
)


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Lets an engine be opened on `cuda` anywhere.

    Batches, bindings and encoders are those of a GPU; the CPU computes, and its memory is bound.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROVIDERS, "cuda", PROVIDERS["cpu"])
        patch.setattr(session_set, "_GPU_MEMORY", "cpu")
        yield


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
    queries = random_queries(0, num_queries)
    queries.flags.writeable = False  # those of a label set, which a GPU keeps
    mixture: list[list[Head]] = [[None], [queries], [None, queries]]
    for count in range(1, 7):
        images = random_images(count, count)
        asked = [mixture[i % 3] for i in range(count)]
        found = engine.run(images, asked, alone=count == 1)
        _assert_same(found, cpu.run(images, asked), tolerance)


def assert_gives_the_cpus_memories(
    engine: Engine, bundle: Bundle, *, num_queries: int, tolerance: float
) -> None:
    """Checks the memories of both heads, of some images of a batch.

    Args:
        engine: runs the bundle, up to six images at a time.
        bundle: a tiny one with both heads and their maps.
        num_queries: labels of the open head.
        tolerance: how far a number may be off.
    """
    cpu = open_engine(bundle, device="cpu", precision="fp32")
    images, explained = random_images(0, 3), [0, 2]
    queries = random_queries(0, num_queries)
    asked: list[list[Head]] = [[None, queries]] * 3
    found = engine.run(images, asked, explained=explained)
    _assert_same(found, cpu.run(images, asked, explained=explained), tolerance)
    assert [len(each.memories) for each in found] == [2, 0, 2]


def _assert_same(
    found: Sequence[HeadResults],
    expected: Sequence[HeadResults],
    tolerance: float,
) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours.logits) == len(theirs.logits)
        pairs = zip((*ours.logits, *ours.memories), (*theirs.logits, *theirs.memories), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, atol=tolerance, rtol=0)
