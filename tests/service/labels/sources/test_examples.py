"""What a label learns: the order of photos, their copies and their portions change nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from service.errors import InvalidLabelSet
from service.labels.sources.examples import Example, Examples
from service.labels.whitening import Whitening
from tests.support.label_store import make_examples, make_photos

WIDTH = 64
PHOTOS = make_examples(9, width=WIDTH)
OTHERS = make_examples(4, seed=1, width=WIDTH)


@pytest.fixture(scope="module")
def whitening() -> Whitening:
    return make_photos(WIDTH).whitening


def learn(*portions: Sequence[Example]) -> Examples:
    examples = Examples.empty(WIDTH)
    for portion in portions:
        examples = examples.add(portion)
    return examples


def assert_equal(examples: Examples, other: Examples, whitening: Whitening) -> None:
    assert examples.count == other.count
    for has_text in (True, False):
        one, two = (each.teach(whitening, None, has_logit=has_text) for each in (examples, other))
        np.testing.assert_allclose(one.vector, two.vector, atol=1e-4 * np.abs(two.vector).max())
        numbers = [(x.shift, x.described["separation"]["value"]) for x in (one, two)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)


@pytest.mark.parametrize(
    "portions",
    [
        [PHOTOS[::-1]],
        [PHOTOS[:1], PHOTOS[1:4], PHOTOS[4:]],
        [[photo] for photo in PHOTOS],
        [PHOTOS, PHOTOS],
        [[*PHOTOS[:3], *PHOTOS]],
        # Copies that were saved again: other bytes, nearly the same embedding.
        [PHOTOS, [Example(bytes([i]), each.embedding * 1.01) for i, each in enumerate(PHOTOS)]],
    ],
)
def test_order_portions_and_copies_change_nothing(
    whitening: Whitening, portions: list[list[Example]]
) -> None:
    assert_equal(learn(*portions), learn(PHOTOS), whitening)


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("spread", [2.0, 4.0])
def test_separation_from_sums_is_that_of_leaving_each_photo_out(
    whitening: Whitening, count: int, spread: float
) -> None:
    photos = make_examples(count, seed=count, width=WIDTH, spread=spread)
    rows = np.stack([photo.embedding for photo in photos])
    values = []
    for place, row in enumerate(rows):
        direction = np.delete(rows, place, axis=0).mean(axis=0)
        mean, deviation = whitening.measure(direction)
        values.append((row @ direction - mean) / deviation)
    examples = learn(photos).positive
    assert examples.count == count
    expected = np.clip(np.mean(values), 0, 8)
    assert examples.separate(whitening) == pytest.approx(expected, rel=0.15)


def test_separation_is_of_similar_photos_and_3_of_a_single_one(whitening: Whitening) -> None:
    alike, mixed = (
        learn(make_examples(5, width=WIDTH, spread=spread)).positive.separate(whitening)
        for spread in (0.7, 20.0)
    )
    assert 0 <= mixed < alike <= 8
    assert learn(PHOTOS[:1]).positive.separate(whitening) == 3
    assert learn().positive.separate(whitening) == 0


@pytest.mark.parametrize("has_text", [True, False])
def test_positives_raise_the_score_of_similar_photos_and_negatives_lower_it(
    whitening: Whitening, has_text: bool
) -> None:
    vectors = [
        learn(*positive).add(negative=negative).teach(whitening, None, has_logit=has_text).vector
        for positive, negative in (([PHOTOS], ()), ([PHOTOS], OTHERS), ((), OTHERS))
    ]
    alike, other = (whitening.project(each[0].embedding)[0] for each in (PHOTOS, OTHERS))
    assert vectors[0] @ alike > 0
    assert vectors[1] @ other < vectors[0] @ other
    assert vectors[2] @ other < 0


def test_photo_of_both_kinds_is_refused_and_named() -> None:
    for examples, positive, negative, words in (
        (learn(), PHOTOS, [OTHERS[0], PHOTOS[3]], "Photo 4 of `positive`"),
        (learn(PHOTOS), [], [OTHERS[0], PHOTOS[3]], "Photo 2 of `negative`"),
        (learn().add(negative=OTHERS), [*PHOTOS, OTHERS[1]], [], "Photo 10 of `positive`"),
    ):
        with pytest.raises(InvalidLabelSet, match=f"{words} is an example of the other kind"):
            examples.add(positive, negative)


def test_examples_are_read_as_they_were_written(whitening: Whitening) -> None:
    for examples in (learn(PHOTOS).add(negative=OTHERS), learn(PHOTOS[:1]), learn()):
        content = examples.to_bytes()
        found = Examples.from_bytes(content)
        assert found.to_bytes() == content
        assert (found.positive.digests.tolist(), found.negative.count) == (
            examples.positive.digests.tolist(),
            examples.negative.count,
        )
        assert_equal(found.add(PHOTOS), examples.add(PHOTOS), whitening)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: b"PK" + content[2:],
        lambda content: content[:4] + b"\xff\xff\xff\xff" + content[8:],  # the width
        lambda content: content[:8] + b"\xff\xff\xff\x7f" + content[12:],  # a count
        lambda content: content[:16] + np.float64(np.nan).tobytes() + content[24:],  # squares
        lambda content: content[:32] + np.float32(np.inf).tobytes() + content[36:],
        lambda _: b"",
    ],
)
def test_damaged_examples_are_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidLabelSet, match="damaged"):
        Examples.from_bytes(change(learn(PHOTOS).to_bytes()))
