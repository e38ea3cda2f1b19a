"""Tensors and cached queries in the memory of a device; here in the CPU's, which binds alike."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from service.engine import tensors
from service.engine.heads import QueryArray
from service.engine.tensors import QueryCache, Tensor, cut_rows, run_graph
from tests.support.tiny_bundle import QUERY_WIDTH, TOKENS, WIDTH, random_queries, tiny_head

LABELS = 10
NUM_BYTES = LABELS * QUERY_WIDTH * 4


@pytest.mark.parametrize(("first", "last"), [(0, 4), (0, 0), (2, 2), (1, 3), (4, 4)])
def test_rows_give_the_results_of_a_batch_of_their_own(first: int, last: int) -> None:
    head = ort.InferenceSession(tiny_head(), providers=["CPUExecutionProvider"])
    tokens = np.random.default_rng(0).normal(size=(5, TOKENS, WIDTH)).astype(np.float32)
    whole = ort.OrtValue.ortvalue_from_numpy(tokens)

    rows = cut_rows(whole, first, last)
    (logits,) = run_graph(head, ["logits"], tokens=rows)

    assert (rows.start, rows.stop) == (first, last + 1)
    (expected,) = head.run(["logits"], {"tokens": tokens[first : last + 1]})
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("width", "start"), [(64, 5), (32, 4), (48, 4), (16, 4), (3, 0), (1000, 0)]
)
def test_rows_begin_at_an_aligned_address(width: int, start: int) -> None:
    whole = ort.OrtValue.ortvalue_from_shape_and_type([8, width], np.float32)

    rows = cut_rows(whole, 5, 6)

    assert (rows.start, rows.stop) == (start, 7)
    assert rows.start * width * 4 % 256 == 0


def make_matrix(seed: int = 0, labels: int = LABELS) -> QueryArray:
    """Returns queries like those of a label set."""
    queries = random_queries(seed, labels)
    queries.flags.writeable = False
    return queries


def find(cache: QueryCache, queries: QueryArray) -> Sequence[Tensor]:
    return cache.find(queries, [queries[:7], queries[7:]])


def is_cached(cache: QueryCache, queries: QueryArray) -> bool:
    """Asks the cache for a matrix; returns whether its chunks are in device memory."""
    chunks = find(cache, queries)
    assert len(chunks) == 2
    arrays = [chunk.numpy() if isinstance(chunk, ort.OrtValue) else chunk for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(arrays), queries)
    return all(isinstance(chunk, ort.OrtValue) for chunk in chunks)


def holds(cache: QueryCache, queries: QueryArray) -> bool:
    return (id(queries), 2) in cache._entries  # `find` cuts two chunks


def test_cache_copies_each_matrix_and_way_to_cut_it_once() -> None:
    cache, queries, equal = QueryCache("cpu"), make_matrix(), make_matrix()
    assert is_cached(cache, queries)
    (whole,) = cache.find(queries, [queries])
    assert len(whole.numpy()) == LABELS  # type: ignore[union-attr]
    assert cache.find(queries, [queries])[0] is whole
    assert find(cache, queries)[0] is find(cache, queries)[0]
    assert find(cache, queries)[0] is not find(cache, equal)[0]


def test_cache_ignores_a_writable_matrix_such_as_that_of_candidate_labels() -> None:
    cache, queries = QueryCache("cpu", max_bytes=NUM_BYTES), make_matrix()
    candidates = random_queries(1, LABELS)
    assert is_cached(cache, queries)
    for value in range(3):
        candidates[:] = value
        assert not is_cached(cache, candidates)
    assert holds(cache, queries)


def test_cache_evicts_the_least_recently_used_matrix_when_bytes_are_short() -> None:
    cache = QueryCache("cpu", max_bytes=2 * NUM_BYTES)
    first, second, third = (make_matrix(seed) for seed in range(3))
    for queries in (first, second, first, third):
        assert is_cached(cache, queries)

    assert holds(cache, first)
    assert not holds(cache, second)


def test_cache_evicts_nothing_for_a_matrix_that_never_fits() -> None:
    cache, queries = QueryCache("cpu", max_bytes=NUM_BYTES), make_matrix()
    assert is_cached(cache, queries)

    assert not is_cached(cache, make_matrix(1, LABELS + 1))

    assert holds(cache, queries)


@pytest.mark.parametrize("gone", ["matrix", "cache"])
def test_cache_frees_the_chunks_when_the_matrix_or_the_cache_is_gone(gone: str) -> None:
    owned: dict[str, Any] = {"cache": QueryCache("cpu"), "matrix": make_matrix()}
    chunks = [weakref.ref(chunk) for chunk in find(owned["cache"], owned["matrix"])]
    assert all(chunk() is not None for chunk in chunks)

    del owned[gone]
    if gone == "matrix":
        assert is_cached(owned["cache"], make_matrix())

    assert all(chunk() is None for chunk in chunks)


def test_cache_returns_the_callers_chunks_when_memory_is_full() -> None:
    cache, queries = QueryCache("nowhere", max_bytes=NUM_BYTES), make_matrix()
    assert not any(is_cached(cache, queries) for _ in range(4))


def test_cache_tries_half_the_bytes_after_memory_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, queries = QueryCache("cpu", max_bytes=NUM_BYTES), make_matrix()
    half = queries[: LABELS // 2]
    refused = []

    def refuse(chunk: QueryArray, _memory: str) -> ort.OrtValue:
        refused.append(len(chunk))
        raise RuntimeError("CUDA failure 2: out of memory")

    with monkeypatch.context() as full:
        full.setattr(tensors, "_copy", refuse)
        for _ in range(3):
            find(cache, queries)

    assert refused == [7]
    assert not is_cached(cache, queries)
    assert is_cached(cache, half)
