"""LabelEncoders: on a thread, candidate labels cached, callers queued, failures contained."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.bundle.card import EmbeddingSpace, OpenHead
from service.engine.heads import LabelVectors
from service.errors import (
    Draining,
    InferenceFailed,
    InvalidLabelSet,
    QueueFull,
)
from service.labels.definition import Definition
from service.labels.encoding import TEXTS_PER_TURN, LabelEncoders
from tests.support.tiny_bundle import make_calibration

pytestmark = pytest.mark.anyio

SPACE = EmbeddingSpace(encoder="fake", width=2, template="a {}")
HEAD = OpenHead(kind="ml_decoder", embedding_space=SPACE, threshold=0.3)
SECONDS = 30.0


class FakeTexts:
    """Encodes a text as its length and its first letter, while `gate` is set."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self.failure: Exception | None = None

    def check(self, texts: Sequence[str]) -> None:
        if any(text.endswith("long") for text in texts):
            raise InvalidLabelSet("too long")

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.arrived.release()
        assert self.gate.wait(SECONDS)
        if self.failure is not None:
            raise self.failure
        self.seen += texts
        return np.array([[len(text), ord(text[2])] for text in texts], np.float32)


class FakeLabels:
    """Queries are twice the embeddings."""

    def __init__(self) -> None:
        self.factor = np.float32(2)

    def encode(self, embeddings: NDArray[np.float32], *, with_keys: bool = True) -> LabelVectors:
        keys = {"projected": embeddings} if with_keys else None
        return LabelVectors(embeddings * self.factor, keys)

    def make_blank(self, count: int) -> LabelVectors:
        raise NotImplementedError


@pytest.fixture
def texts() -> FakeTexts:
    return FakeTexts()


def make_encoding(texts: Any, *, cache_size: int = 3, labels: Any = None) -> LabelEncoders:
    return LabelEncoders(HEAD, labels or FakeLabels(), texts, cache_size=cache_size, queue_size=1)


@pytest.fixture
async def encoding(texts: FakeTexts) -> AsyncIterator[LabelEncoders]:
    encoding = make_encoding(texts)
    yield encoding
    texts.gate.set()
    encoding.close()


def name(*names: str, **values: Any) -> Definition:
    return Definition("any", names, (None,) * len(names), (None,) * len(names), **values)


async def test_given_embeddings_stay_and_texts_fill_the_gaps(
    encoding: LabelEncoders, texts: FakeTexts
) -> None:
    given = np.array([[7, 8]], np.float32)
    found = await encoding.embed(name("bb", "given", "c", given=(1,), embeddings=given))
    assert found.tolist() == [[4, ord("b")], [7, 8], [3, ord("c")]]
    assert texts.seen == ["a bb", "a c"]
    assert (await encoding.project(found)).queries.tolist() == (2 * found).tolist()


async def test_keys_that_are_not_finite_are_refused(texts: FakeTexts) -> None:
    class FakeKeys(FakeLabels):
        def encode(
            self, embeddings: NDArray[np.float32], *, with_keys: bool = True
        ) -> LabelVectors:
            assert with_keys
            return LabelVectors(embeddings, {"readouts": np.array([[1], [np.inf]], np.float32)})

    encoding = make_encoding(texts, labels=FakeKeys())
    with pytest.raises(InvalidLabelSet, match="Embedding 2 of 2"):
        await encoding.project(np.ones((2, 2), np.float32))
    encoding.close()


async def test_name_in_another_spelling_has_the_calibration_of_a_trained_name(
    texts: FakeTexts,
) -> None:
    head = HEAD.model_copy(
        update={"calibration": make_calibration(2, 0), "trained_names": make_calibration(3, 0)}
    )
    trained = ["traffic_light", "Cafe\u0301"]
    encoding = LabelEncoders(
        head, FakeLabels(), texts, trained_names=trained, cache_size=3, queue_size=1
    )
    asked = name("traffic light", "Traffic_Light", "CAF\u00c9", "light")
    labels = encoding.make_set(asked, LabelVectors(np.ones((4, 2), np.float32)), "1", "request")
    encoding.close()
    assert labels.calibration is not None
    assert labels.calibration[0].tolist() == [3, 3, 3, 2]


async def test_candidate_is_encoded_once_for_many_requests(
    encoding: LabelEncoders, texts: FakeTexts
) -> None:
    first = await encoding.encode_candidates(name("x", "y"))
    again = await encoding.encode_candidates(name("y", "z", "x"))
    assert texts.seen == ["a x", "a y", "a z"]
    assert again.queries[[2, 0]].tolist() == first.queries.tolist()


async def test_least_recently_used_candidate_is_evicted(
    encoding: LabelEncoders, texts: FakeTexts
) -> None:
    for names in (("x", "y", "z"), ("x",), ("w",)):  # three are cached
        await encoding.encode_candidates(name(*names))
    texts.seen.clear()
    await encoding.encode_candidates(name("x", "z", "w"))
    assert texts.seen == []
    await encoding.encode_candidates(name("y"))
    assert texts.seen == ["a y"]


@pytest.mark.parametrize("cache_size", [0, 1])
async def test_more_candidates_than_the_cache_takes_are_all_encoded(
    texts: FakeTexts, cache_size: int
) -> None:
    encoding = make_encoding(texts, cache_size=cache_size)
    found = await encoding.encode_candidates(name("x", "yy", "zzz"))
    assert found.queries[:, 0].tolist() == [6, 8, 10]
    encoding.close()


async def test_caller_is_refused_at_once_if_the_queue_is_full(
    encoding: LabelEncoders, texts: FakeTexts
) -> None:
    texts.gate.clear()
    first = asyncio.create_task(encoding.embed(name("x")))
    await asyncio.to_thread(texts.arrived.acquire, timeout=SECONDS)
    with pytest.raises(QueueFull):
        await encoding.embed(name("y"))
    given = name("z", given=(0,), embeddings=np.ones((1, 2), np.float32))
    assert (await encoding.embed(given)).tolist() == [[1, 1]], "it needs no text encoder"
    texts.gate.set()
    assert (await first).shape == (1, 2)
    assert (await encoding.embed(name("y"))).shape == (1, 2)


async def test_cancelled_caller_stops_the_rest_of_its_list(
    encoding: LabelEncoders, texts: FakeTexts
) -> None:
    texts.gate.clear()
    names = [f"{i}" for i in range(3 * TEXTS_PER_TURN)]
    long = asyncio.create_task(encoding.embed(name(*names)))
    await asyncio.to_thread(texts.arrived.acquire, timeout=SECONDS)
    long.cancel()
    await asyncio.wait([long])
    texts.gate.set()
    await encoding.embed(name("after"))
    assert texts.seen == [f"a {i}" for i in names[:TEXTS_PER_TURN]] + ["a after"]


async def test_failure_reaches_only_its_caller(encoding: LabelEncoders, texts: FakeTexts) -> None:
    texts.failure = RuntimeError("secret")
    with pytest.raises(InferenceFailed):
        await encoding.encode_candidates(name("x"))
    texts.failure = None
    assert (await encoding.encode_candidates(name("x"))).queries.shape == (1, 2)


async def test_queries_that_are_not_finite_are_refused(texts: FakeTexts) -> None:
    labels = FakeLabels()
    encoding = make_encoding(texts, labels=labels)
    labels.factor = np.float32(np.inf)
    with pytest.raises(InvalidLabelSet):
        await encoding.encode_candidates(name("x"))
    labels.factor = np.float32(1)
    assert np.isfinite((await encoding.encode_candidates(name("x"))).queries).all()
    encoding.close()


async def test_closed_encoding_raises_draining(encoding: LabelEncoders) -> None:
    encoding.close()
    with pytest.raises(Draining):
        await encoding.embed(name("x"))
