"""Texts become embeddings and embeddings queries, on a thread; failures reach one caller."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service.bundle.card import EmbeddingSpace, OpenHead
from service.bundle.reader import Bundle
from service.engine.heads import LabelVectors
from service.errors import BundleError, InferenceFailed, InvalidLabelSet, QueueFull
from service.labels import encoders
from service.labels.definition import Definition
from service.labels.encoders import (
    MAX_TOKENS,
    TEXTS_PER_TURN,
    LabelEncoder,
    LabelEncoders,
    TextEncoder,
    open_label_encoder,
    open_text_encoder,
)
from tests.support.label_store import define
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    QUERY_WIDTH,
    parse_graph,
    tiny_head,
    tiny_label_encoder,
    tiny_tokenizer,
    write_changed_bundle,
    write_screened_bundle,
)

pytestmark = pytest.mark.anyio

SPACE = EmbeddingSpace(encoder="fake", width=2, template="a {}")
HEAD = OpenHead(kind="ml_decoder", embedding_space=SPACE, threshold=0.3)
SECONDS = 30.0
# Runs over other numbers of labels may sum in another order.
TOLERANCE = 1e-6


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
    """Queries are twice the embeddings, and keys are `keys`."""

    keys: dict[str, NDArray[np.float32]] | None = None
    factor = np.float32(2)

    def encode(self, embeddings: NDArray[np.float32], *, with_keys: bool = True) -> LabelVectors:
        return LabelVectors(embeddings * self.factor, self.keys if with_keys else None)

    def make_blank(self, count: int) -> LabelVectors:
        raise NotImplementedError


@pytest.fixture
def texts() -> FakeTexts:
    return FakeTexts()


@pytest.fixture
def labels() -> FakeLabels:
    return FakeLabels()


Open = Callable[..., LabelEncoders]


@pytest.fixture
def open_fakes(texts: Any, labels: Any) -> Iterator[Open]:
    opened: list[LabelEncoders] = []

    def open_fakes(head: OpenHead = HEAD, cache_size: int = 3, **options: Any) -> LabelEncoders:
        made = LabelEncoders(head, labels, texts, cache_size=cache_size, queue_size=1, **options)
        opened.append(made)
        return made

    yield open_fakes
    texts.gate.set()
    for made in opened:
        made.close()


@pytest.fixture
def fakes(open_fakes: Open) -> LabelEncoders:
    return open_fakes()


def name(*names: str, **values: Any) -> Definition:
    return define("any", *names, **values)


async def test_given_embeddings_stay_and_texts_fill_the_gaps(
    fakes: LabelEncoders, texts: FakeTexts
) -> None:
    own = np.array([[7, 8]], np.float32)
    found = await fakes.embed(name("bb", "given", "c", given=(1,), embeddings=own))
    assert found.tolist() == [[4, ord("b")], [7, 8], [3, ord("c")]]
    assert texts.seen == ["a bb", "a c"]
    assert (await fakes.project(found)).queries.tolist() == (2 * found).tolist()


async def test_text_that_is_too_long_is_refused_before_any_is_encoded(
    fakes: LabelEncoders, texts: FakeTexts
) -> None:
    with pytest.raises(InvalidLabelSet, match="too long"):
        await fakes.embed(name(*map(str, range(TEXTS_PER_TURN)), "long"))
    assert not texts.seen


async def test_least_recently_used_candidate_is_evicted(
    fakes: LabelEncoders, texts: FakeTexts
) -> None:
    first = await fakes.encode_candidates(name("x", "y", "z"))  # three are cached
    again = await fakes.encode_candidates(name("x"))
    assert again.queries.tolist() == first.queries[:1].tolist()
    await fakes.encode_candidates(name("w"))
    assert texts.seen == ["a x", "a y", "a z", "a w"]
    await fakes.encode_candidates(name("x", "z", "w"))
    assert len(texts.seen) == 4
    await fakes.encode_candidates(name("y"))
    assert texts.seen[4:] == ["a y"]


@pytest.mark.parametrize("cache_size", [0, 1])
async def test_more_candidates_than_the_cache_takes_are_all_encoded(
    open_fakes: Open, cache_size: int
) -> None:
    found = await open_fakes(cache_size=cache_size).encode_candidates(name("x", "yy", "zzz"))
    assert found.queries[:, 0].tolist() == [6, 8, 10]


async def test_caller_is_refused_at_once_if_the_queue_is_full(
    fakes: LabelEncoders, texts: FakeTexts
) -> None:
    texts.gate.clear()
    first = asyncio.create_task(fakes.embed(name("x")))
    await asyncio.to_thread(texts.arrived.acquire, timeout=SECONDS)
    with pytest.raises(QueueFull):
        await fakes.embed(name("y"))
    own = name("z", given=(0,), embeddings=np.ones((1, 2), np.float32))
    assert (await fakes.embed(own)).tolist() == [[1, 1]], "it needs no text encoder"
    texts.gate.set()
    assert (await first).shape == (1, 2)
    assert (await fakes.embed(name("y"))).shape == (1, 2)


async def test_cancelled_caller_stops_the_rest_of_its_list(
    fakes: LabelEncoders, texts: FakeTexts
) -> None:
    texts.gate.clear()
    names = [f"{i}" for i in range(3 * TEXTS_PER_TURN)]
    long = asyncio.create_task(fakes.embed(name(*names)))
    await asyncio.to_thread(texts.arrived.acquire, timeout=SECONDS)
    long.cancel()
    await asyncio.wait([long])
    texts.gate.set()
    await fakes.embed(name("after"))
    assert texts.seen == [f"a {i}" for i in names[:TEXTS_PER_TURN]] + ["a after"]


async def test_failure_reaches_only_its_caller(fakes: LabelEncoders, texts: FakeTexts) -> None:
    texts.failure = RuntimeError("secret")
    with pytest.raises(InferenceFailed):
        await fakes.encode_candidates(name("x"))
    texts.failure = None
    assert (await fakes.encode_candidates(name("x"))).queries.shape == (1, 2)


async def test_queries_and_keys_that_are_not_finite_are_refused(
    fakes: LabelEncoders, labels: FakeLabels
) -> None:
    labels.factor = np.float32(np.inf)
    with pytest.raises(InvalidLabelSet, match="Embedding 1 of 1"):
        await fakes.encode_candidates(name("x"))
    labels.factor = np.float32(1)
    assert np.isfinite((await fakes.encode_candidates(name("x"))).queries).all()
    labels.keys = {"readouts": np.array([[1], [np.inf]], np.float32)}
    with pytest.raises(InvalidLabelSet, match="Embedding 2 of 2"):
        await fakes.project(np.ones((2, 2), np.float32))


@pytest.fixture(scope="module")
def text_encoder(open_bundle: Bundle) -> TextEncoder:
    return open_text_encoder(open_bundle, 1)


@settings(max_examples=25)
@given(st.lists(st.text("abc \u00e9", min_size=1, max_size=40), max_size=8))
def test_embedding_does_not_depend_on_other_texts_in_the_batch(
    text_encoder: TextEncoder, texts: list[str]
) -> None:
    together = text_encoder.encode(texts)
    assert together.shape == (len(texts), EMBEDDING_WIDTH)
    for row, text in zip(together, texts, strict=True):
        np.testing.assert_allclose(row, text_encoder.encode([text])[0], atol=TOLERANCE, rtol=0)


def test_long_text_is_cut_and_refused_by_the_check(text_encoder: TextEncoder) -> None:
    start = "ab" * (MAX_TOKENS // 2)
    text_encoder.check([start])
    reason = rf"reads {MAX_TOKENS} tokens .* has {MAX_TOKENS + 9}"
    with pytest.raises(InvalidLabelSet, match=reason):
        text_encoder.check(["a", start + "c" * 9])
    cut, whole, shorter = text_encoder.encode([start + "c" * 999, start, start[:-1]])
    np.testing.assert_array_equal(cut, whole)
    assert not np.allclose(whole, shorter)


def test_text_encoder_reads_no_more_than_its_tokenizer_says(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer().decode())
    tokenizer.enable_truncation(7)
    encoder = open_text_encoder(write_changed_bundle(tmp_path, tokenizer.to_str().encode()), 1)
    with pytest.raises(InvalidLabelSet, match=r"reads 7 tokens .* has 8"):
        encoder.check(["12345678"])


@pytest.mark.parametrize(
    ("file", "content"),
    [("tokenizer", b'{"version": "1.0"}'), ("text_encoder", tiny_label_encoder())],
)
def test_text_encoder_with_a_damaged_tokenizer_or_other_tensors_is_refused(
    tmp_path: Path, file: str, content: bytes
) -> None:
    bundle = write_changed_bundle(tmp_path, **{file: content})
    with pytest.raises(BundleError, match=file):
        open_text_encoder(bundle, 1)


EMBEDDINGS = np.random.default_rng(0).normal(size=(10, EMBEDDING_WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def label_encoder(open_bundle: Bundle) -> LabelEncoder:
    return open_label_encoder(open_bundle, 1)


@pytest.mark.parametrize("per_run", [1, 3, 10, 11])
def test_chunks_of_embeddings_give_the_queries_of_the_whole(
    label_encoder: LabelEncoder, monkeypatch: pytest.MonkeyPatch, per_run: int
) -> None:
    whole = label_encoder.encode(EMBEDDINGS).queries
    assert whole.shape == label_encoder.make_blank(10).queries.shape == (10, QUERY_WIDTH)
    monkeypatch.setattr(encoders, "LABELS_PER_RUN", per_run)
    found = label_encoder.encode(EMBEDDINGS)
    np.testing.assert_allclose(found.queries, whole, atol=TOLERANCE, rtol=0)
    assert found.keys is None
    assert label_encoder.encode(EMBEDDINGS[:0]).queries.shape == (0, QUERY_WIDTH)


def test_keys_are_those_of_the_queries_chunks_unless_the_screen_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "LABELS_PER_RUN", 3)
    bundle = write_screened_bundle(tmp_path)
    encoder = open_label_encoder(bundle, 1)
    found = encoder.encode(EMBEDDINGS)
    np.testing.assert_array_equal(found.keys["projected"], found.queries)
    assert encoder.encode(EMBEDDINGS, with_keys=False).keys is None
    plain = open_label_encoder(bundle, 1, screen=False)
    assert plain.encode(EMBEDDINGS).keys is None


def odd_encoder(operation: str) -> bytes:
    return parse_graph(
        f"(float[L, {EMBEDDING_WIDTH}] embeddings) => (float[Q, K] queries) "
        f"{{ queries = {operation} }}",
        shape=[-1, 2 * EMBEDDING_WIDTH + 1],
    )


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (tiny_head(), "label_encoder"),
        (tiny_label_encoder(width=EMBEDDING_WIDTH + 1), "embeddings"),
        # The start encodes two embeddings.
        (odd_encoder("Concat <axis = 0> (embeddings, embeddings)"), "gave queries of shape"),
        (odd_encoder("Reshape (embeddings, shape)"), "does not run"),
    ],
)
def test_label_encoder_with_other_tensors_is_refused(
    tmp_path: Path, graph: bytes, reason: str
) -> None:
    bundle = write_changed_bundle(tmp_path, label_encoder=graph)
    with pytest.raises(BundleError, match=reason):
        open_label_encoder(bundle, 1)
