"""A batch with any mixture of heads gives each image the results that it gets alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.bundle.card import Precision
from service.bundle.reader import Bundle
from service.engine import session_set
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD, Head, HeadResults, SomeQueries, ZeroHead
from service.engine.session_set import SessionSet, open_session_set
from service.engine.sessions import SessionConfig
from service.engine.tensors import QueryCache
from service.errors import BundleError, InferenceFailed
from service.images.decode import PixelArray
from tests.support.tiny_bundle import (
    QUERY_WIDTH,
    blank_labels,
    random_images,
    random_queries,
    tiny_head,
    tiny_open_head,
    write_changed_bundle,
)

# Runs over other numbers of images or labels may sum in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def engine(open_bundle: Bundle) -> Engine:
    engine = open_engine(open_bundle, device="cpu", max_batch_size=4, threads=2)
    engine.warm_up(blank_labels)
    return engine


def run_one(engine: Engine, image: PixelArray, head: Head) -> NDArray[np.float32]:
    (((logits,), *_),) = engine.run(image[None], [[head]], alone=True)
    return logits


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    asked=st.lists(
        st.lists(st.sampled_from(["trained", "a", "b", "c"]), unique=True, max_size=4),
        min_size=1,
        max_size=4,
    ),
)
def test_mixed_batch_gives_each_image_the_logits_of_its_heads(
    engine: Engine, seed: int, asked: list[list[str]]
) -> None:
    images = random_images(seed, len(asked))
    heads: dict[str, Head] = {name: random_queries(i, 5 + i) for i, name in enumerate("abc")}
    heads["trained"] = TRAINED_HEAD

    results = engine.run(images, [[heads[name] for name in names] for names in asked])

    for image, names, answer in zip(images, asked, results, strict=True):
        assert len(answer.logits) == len(names)
        for name, logits in zip(names, answer.logits, strict=True):
            alone = run_one(engine, image, heads[name])
            np.testing.assert_allclose(logits, alone, atol=TOLERANCE, rtol=0)


def assert_same_logits(
    answers: list[HeadResults], sessions: SessionSet, images: PixelArray, asked: list[list[Head]]
) -> None:
    for wanted, results in zip(sessions.run(images, asked), answers, strict=True):
        for theirs, ours in zip(wanted.logits, results.logits, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


class CountingSession:
    """A session that records the batch size of each run."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.sizes: list[int] = []
        self._session = session

    def io_binding(self) -> ort.IOBinding:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: ort.IOBinding) -> None:
        self._session.run_with_iobinding(binding)
        self.sizes.append(binding.get_outputs()[0].shape()[0])

    def run(self, outputs: list[str], inputs: dict[str, PixelArray]) -> list[NDArray[np.float32]]:
        self.sizes.append(len(inputs["images"]))
        answers: list[NDArray[np.float32]] = self._session.run(outputs, inputs)
        return answers


def test_heads_on_a_gpu_run_from_the_first_to_the_last_row_that_asks(open_bundle: Bundle) -> None:
    sessions = open_session_set(open_bundle, SessionConfig("cpu", "fp32"))
    trained, opened = CountingSession(sessions.trained_head), CountingSession(sessions.open_head)
    bound = replace(sessions, query_cache=QueryCache("cpu"), trained_head=trained, open_head=opened)
    images, (a, b, c) = random_images(6, 8), (random_queries(seed, 4) for seed in range(3))
    asked: list[list[Head]] = [
        [TRAINED_HEAD],
        [a],
        [TRAINED_HEAD, b],
        [TRAINED_HEAD],
        [b],
        [b],
        [c],
        [],
    ]

    answers = bound.run(images, asked)

    assert trained.sizes == [4]
    assert opened.sizes == [1, 4, 1]
    assert_same_logits(answers, sessions, images, asked)


def test_many_small_sets_of_the_same_images_share_runs(mapped_bundle: Bundle) -> None:
    plain = open_session_set(mapped_bundle, SessionConfig("cpu", "fp32"))
    opened, images = CountingSession(plain.open_head), random_images(9, 2)
    sessions = replace(plain, query_cache=QueryCache("cpu"), open_head=opened)
    small: list[Head] = [random_queries(i, 1 + i % 3) for i in range(150)]
    small[5] = SomeQueries(random_queries(5, 4), np.array([1, 3]))
    asked = [[*small[:30], TRAINED_HEAD, *small[30:]], small[:9]]

    answers = sessions.run(images, asked, explained=[0])

    assert sorted(opened.sizes) == [1, 1, 2]
    for head, logits, memory in zip(asked[0], *answers[0][:2], strict=True):
        (alone, _) = plain.run(images, [[head], []], explained=[0])
        np.testing.assert_allclose(logits, alone.logits[0], atol=TOLERANCE)  # type: ignore[arg-type]
        np.testing.assert_allclose(memory, alone.memories[0], atol=TOLERANCE)
    for first, second in zip(answers[0].logits, answers[1].logits, strict=False):
        assert first.shape == second.shape  # type: ignore[union-attr]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("two_towers", [False, True])
def test_embedding_is_the_mean_or_first_token_of_the_rows_that_ask(
    mapped_bundle: Bundle, *, on_gpu: bool, two_towers: bool
) -> None:
    plain = open_session_set(mapped_bundle, SessionConfig("cpu", "fp32"))
    cache = QueryCache("cpu") if on_gpu else None
    sessions = replace(plain, query_cache=cache, two_towers=two_towers)
    images = random_images(8, 4)
    asked: list[list[Head]] = [
        [TRAINED_HEAD],
        [random_queries(0, 4), ZeroHead(2)],
        [],
        [TRAINED_HEAD, ZeroHead(1)],
    ]
    (tokens,) = plain.encoder.run(["tokens"], {"images": images})

    answers = sessions.run(images, asked, explained=[0, 3], embedded=[1, 2, 3])

    assert answers[0].embedding is None
    for row in (1, 2, 3):
        mean = tokens[row, 0] if two_towers else tokens[row].mean(axis=0)
        expected = mean / np.linalg.norm(mean)
        np.testing.assert_allclose(answers[row].embedding, expected, atol=TOLERANCE)  # type: ignore[arg-type]
    assert [answer.tokens is not None for answer in answers] == [False, False, False, True]
    np.testing.assert_allclose(answers[3].tokens, tokens[3], atol=TOLERANCE)  # type: ignore[arg-type]
    assert_same_logits(answers, sessions, images, asked)
    np.testing.assert_array_equal(answers[1].logits[1], [0, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize(("precision", "sizes"), [("fp32", [1, 1, 1]), ("int8", [3])])
def test_fp32_encoder_runs_image_by_image_and_int8_in_batches(
    tiny_bundle: Bundle, precision: Precision, sizes: list[int]
) -> None:
    sessions = open_session_set(tiny_bundle, SessionConfig("cpu", precision))
    counting = CountingSession(sessions.encoder)
    images, asked = random_images(7, 3), [[TRAINED_HEAD]] * 3

    results = replace(sessions, encoder=counting).run(images, asked)

    assert counting.sizes == sizes
    for image, together in zip(images, results, strict=True):
        (alone,) = sessions.run(image[None], [[TRAINED_HEAD]])
        np.testing.assert_allclose(together.logits, alone.logits, atol=TOLERANCE, rtol=0)


@settings(max_examples=25)
@given(size=st.integers(1, 20), per_run=st.integers(1, 8), data=st.data())
def test_some_queries_and_chunks_give_the_logits_of_their_rows(
    engine: Engine, size: int, per_run: int, data: st.DataObject
) -> None:
    (image,), queries = random_images(size, 1), random_queries(size, size)
    rows = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1).map(sorted))
    whole = run_one(engine, image, queries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_set, "LABELS_PER_RUN", per_run)
        some = run_one(engine, image, SomeQueries(queries, np.array(rows)))
        chunked = run_one(engine, image, queries)

    np.testing.assert_allclose(chunked, whole, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(some, whole[rows], atol=TOLERANCE, rtol=0)


def test_failure_of_the_open_head_fails_one_batch_only(engine: Engine) -> None:
    images = random_images(1, 2)
    with pytest.raises(InferenceFailed):
        engine.run(images, [[TRAINED_HEAD], [np.zeros((2, QUERY_WIDTH + 1), np.float32)]])
    assert len(engine.run(images, [[TRAINED_HEAD], [random_queries(0, 2)]])) == 2


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        # ONNX Runtime finds it while loading or while running, depending on its version.
        (tiny_open_head(query_width=QUERY_WIDTH + 1), "do not run|not a usable ONNX graph"),
        (tiny_head(), "open_head has tokens where it should have only"),
    ],
)
def test_open_head_with_other_inputs_is_refused(tmp_path: Path, head: bytes, reason: str) -> None:
    bundle = write_changed_bundle(tmp_path, open_head=head)
    with pytest.raises(BundleError, match=reason):
        open_engine(bundle, device="cpu").warm_up(blank_labels)
