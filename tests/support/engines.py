"""Comparisons of an engine with the CPU's, and marks of tests that need more than a CPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle.reader import Bundle
from service.engine import session_set
from service.engine.devices import PROVIDERS, check_device, multiplies_bf16, multiplies_int8
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD, Head, HeadResults
from service.engine.sessions import first_line
from service.errors import StartError
from tests.support.tiny_bundle import random_images, random_queries


def _why_no_openvino() -> str:
    """Returns why tests of OpenVINO cannot run here, or an empty string."""
    try:
        check_device("openvino")
    except StartError as error:
        return str(error)
    return ""


def why_no_gpu() -> str:
    """Returns why ONNX Runtime has no GPU here, or an empty string."""
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
needs_int8 = pytest.mark.skipif(not multiplies_int8(), reason="this processor has no VNNI")


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Opens engines on `cuda` with the code of a GPU and the kernels and memory of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROVIDERS, "cuda", PROVIDERS["cpu"])
        patch.setattr(session_set, "_GPU_MEMORY", "cpu")
        yield


def assert_gives_the_cpus_logits(
    engine: Engine, bundle: Bundle, *, num_queries: int, tolerance: float
) -> None:
    """Checks the batch sizes 1 to 6 of an engine in fp32, in any mixture of the two heads."""
    cpu = open_engine(bundle, device="cpu", precision="fp32", max_batch_size=6)
    queries = random_queries(0, num_queries)
    queries.flags.writeable = False  # like a label set's, which are cached on a GPU
    mixture: list[list[Head]] = [[TRAINED_HEAD], [queries], [TRAINED_HEAD, queries]]
    for count in range(1, 7):
        images = random_images(count, count)
        asked = [mixture[i % 3] for i in range(count)]
        _assert_same(engine.run(images, asked, alone=count == 1), cpu.run(images, asked), tolerance)


def assert_gives_the_cpus_memories(
    engine: Engine, bundle: Bundle, *, num_queries: int, tolerance: float
) -> None:
    """Checks the memories of both heads for some images of a batch."""
    cpu = open_engine(bundle, device="cpu", precision="fp32")
    images, explained = random_images(0, 3), [0, 2]
    asked: list[list[Head]] = [[TRAINED_HEAD, random_queries(0, num_queries)]] * 3
    answers = engine.run(images, asked, explained=explained)
    _assert_same(answers, cpu.run(images, asked, explained=explained), tolerance)
    assert [len(answer.memories) for answer in answers] == [2, 0, 2]


def _assert_same(
    answers: Sequence[HeadResults], expected: Sequence[HeadResults], tolerance: float
) -> None:
    for ours, theirs in zip(answers, expected, strict=True):
        assert len(ours.logits) == len(theirs.logits)
        pairs = zip((*ours.logits, *ours.memories), (*theirs.logits, *theirs.memories), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, atol=tolerance, rtol=0)
