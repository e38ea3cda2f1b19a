"""Rows of a tensor in the memory of a device are read where they lie; here in the CPU's."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from service.engine.tensors import cut_rows, run_graph
from tests.support.tiny_bundle import TOKENS, WIDTH, tiny_head


@pytest.mark.parametrize(("first", "last"), [(0, 4), (0, 0), (2, 2), (1, 3), (4, 4)])
def test_rows_give_what_they_give_as_a_batch_of_their_own(first: int, last: int) -> None:
    head = ort.InferenceSession(tiny_head(), providers=["CPUExecutionProvider"])
    tokens = np.random.default_rng(0).normal(size=(5, TOKENS, WIDTH)).astype(np.float32)
    whole = ort.OrtValue.ortvalue_from_numpy(tokens)

    rows = cut_rows(whole, first, last)
    (found,) = run_graph(head, ["logits"], tokens=rows)

    assert (rows.start, rows.stop) == (first, last + 1)
    (expected,) = head.run(["logits"], {"tokens": tokens[first : last + 1]})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("width", "start"), [(64, 5), (32, 4), (48, 4), (16, 4), (3, 0), (1000, 0)]
)
def test_rows_begin_where_an_allocation_may(width: int, start: int) -> None:
    whole = ort.OrtValue.ortvalue_from_shape_and_type([8, width], np.float32)

    rows = cut_rows(whole, 5, 6)

    assert (rows.start, rows.stop) == (start, 7)
    assert rows.start * width * 4 % 256 == 0
