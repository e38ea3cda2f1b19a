"""Queries of label sets stay in the memory of a GPU; here in the CPU's, which is bound alike."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import pytest

from service.engine import kept_queries
from service.engine.heads import QueryArray
from service.engine.kept_queries import KeptQueries
from service.engine.tensors import Tensor
from tests.support.tiny_bundle import QUERY_WIDTH, random_queries

LABELS = 10
NUM_BYTES = LABELS * QUERY_WIDTH * 4


def make_matrix(seed: int = 0) -> QueryArray:
    """Returns queries as a label set has them."""
    queries = random_queries(seed, LABELS)
    queries.flags.writeable = False
    return queries


def ask(kept: KeptQueries, queries: QueryArray) -> Sequence[Tensor]:
    return kept.find(queries, [queries[:7], queries[7:]])


def brings(kept: KeptQueries, queries: QueryArray) -> bool:
    """Tells whether a run has to bring the queries along."""
    chunks = ask(kept, queries)
    assert len(chunks) == 2
    there = [chunk.numpy() if isinstance(chunk, ort.OrtValue) else chunk for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(there), queries)
    return not all(isinstance(chunk, ort.OrtValue) for chunk in chunks)


def test_matrix_stays_from_its_second_run_on() -> None:
    kept, queries = KeptQueries("cpu"), make_matrix()
    assert [brings(kept, queries) for _ in range(4)] == [True, False, False, False]
    assert ask(kept, queries)[0] is ask(kept, queries)[0]


def test_matrices_that_are_equal_are_not_the_same() -> None:
    kept, queries = KeptQueries("cpu"), make_matrix()
    assert not [brings(kept, queries) for _ in range(2)][-1]
    assert brings(kept, make_matrix())


def test_matrix_that_may_change_is_brought_with_every_run() -> None:
    kept, queries = KeptQueries("cpu"), random_queries(0, LABELS)
    for value in range(3):
        queries[:] = value
        assert brings(kept, queries)


def test_matrices_that_run_once_push_nobody_out() -> None:
    kept, queries = KeptQueries("cpu", most_bytes=NUM_BYTES), make_matrix()
    once = [make_matrix(seed) for seed in range(1, 20)]
    for _ in range(2):
        brings(kept, queries)

    assert all(brings(kept, each) for each in once)
    assert not brings(kept, queries)


def test_matrix_that_was_asked_for_the_longest_ago_makes_room() -> None:
    kept = KeptQueries("cpu", most_bytes=2 * NUM_BYTES)
    first, second, third = matrices = [make_matrix(seed) for seed in range(3)]
    for queries in matrices[:2]:
        assert not [brings(kept, queries) for _ in range(2)][-1]
    brings(kept, first)

    assert not [brings(kept, third) for _ in range(2)][-1]

    assert not brings(kept, first)
    assert brings(kept, second)


def test_matrix_that_is_larger_than_the_room_pushes_nobody_out() -> None:
    kept, queries = KeptQueries("cpu", most_bytes=NUM_BYTES), make_matrix()
    larger = random_queries(1, LABELS + 1)
    larger.flags.writeable = False
    assert not [brings(kept, queries) for _ in range(2)][-1]

    assert all(brings(kept, larger) for _ in range(3))
    assert not brings(kept, queries)


def test_matrix_that_is_gone_gives_its_room_back() -> None:
    kept, queries = KeptQueries("cpu"), make_matrix()
    chunks = [weakref.ref(chunk) for chunk in [ask(kept, queries) for _ in range(2)][-1]]
    assert all(chunk() is not None for chunk in chunks)

    del queries

    assert all(chunk() is None for chunk in chunks)


def test_memory_that_is_full_leaves_the_queries_to_the_runs() -> None:
    kept, queries = KeptQueries("nowhere", most_bytes=NUM_BYTES), make_matrix()
    assert all(brings(kept, queries) for _ in range(4))


def test_memory_that_was_full_once_is_asked_for_half(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, queries = KeptQueries("cpu", most_bytes=NUM_BYTES), make_matrix()
    half = queries[: LABELS // 2]
    refused = []

    def refuse(chunk: QueryArray, _memory: str) -> ort.OrtValue:
        refused.append(len(chunk))
        raise RuntimeError("CUDA failure 2: out of memory")

    with monkeypatch.context() as full:
        full.setattr(kept_queries, "_copy", refuse)
        for _ in range(3):
            ask(kept, queries)

    assert refused == [7]
    assert all(brings(kept, queries) for _ in range(3))
    assert not [brings(kept, half) for _ in range(2)][-1]


def test_threads_that_ask_at_the_same_time_get_what_they_ask_for() -> None:
    kept = KeptQueries("cpu", most_bytes=3 * NUM_BYTES)
    matrices = [make_matrix(seed) for seed in range(5)]
    failed = []

    def ask_for_all() -> None:
        try:
            for turn in range(200):
                brings(kept, matrices[turn % 5])
                brings(kept, make_matrix(turn))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask_for_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not failed
