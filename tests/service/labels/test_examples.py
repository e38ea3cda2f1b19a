"""What a label learns: the order of photos, their copies and their portions change nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from service.errors import InvalidLabelSet
from service.labels.background import Background
from service.labels.examples import Example, Lesson, make_lesson, read_lesson
from tests.support.label_store import make_examples, make_photos

WIDTH = 64
PHOTOS = make_examples(9, width=WIDTH)
OTHERS = make_examples(4, seed=1, width=WIDTH)


@pytest.fixture(scope="module")
def background() -> Background:
    return make_photos(WIDTH).background


def learn(*portions: Sequence[Example]) -> Lesson:
    lesson = make_lesson(WIDTH)
    for portion in portions:
        lesson = lesson.add(portion)
    return lesson


def assert_equal(lesson: Lesson, other: Lesson, background: Background) -> None:
    assert lesson.count == other.count
    for has_text in (True, False):
        (vector, *numbers), (expected, *right) = (
            each.direct(background, has_text=has_text) for each in (lesson, other)
        )
        np.testing.assert_allclose(vector, expected, atol=1e-4 * np.abs(expected).max())
        assert numbers == pytest.approx(right, rel=1e-4)


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
    background: Background, portions: list[list[Example]]
) -> None:
    assert_equal(learn(*portions), learn(PHOTOS), background)


@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("spread", [2.0, 4.0])
def test_separation_from_sums_is_that_of_leaving_each_photo_out(
    background: Background, count: int, spread: float
) -> None:
    photos = make_examples(count, seed=count, width=WIDTH, spread=spread)
    rows = np.stack([photo.embedding for photo in photos])
    values = []
    for place, row in enumerate(rows):
        direction = np.delete(rows, place, axis=0).mean(axis=0)
        mean, deviation = background.measure(direction)
        values.append((row @ direction - mean) / deviation)
    examples = learn(photos).positive
    assert examples.count == count
    expected = np.clip(np.mean(values), 0, 8)
    assert examples.separate(background) == pytest.approx(expected, rel=0.15)


def test_separation_is_of_similar_photos_and_3_of_a_single_one(background: Background) -> None:
    alike, mixed = (
        learn(make_examples(5, width=WIDTH, spread=spread)).positive.separate(background)
        for spread in (0.7, 20.0)
    )
    assert 0 <= mixed < alike <= 8
    assert learn(PHOTOS[:1]).positive.separate(background) == 3
    assert learn().positive.separate(background) == 0


@pytest.mark.parametrize("has_text", [True, False])
def test_positives_raise_the_score_of_similar_photos_and_negatives_lower_it(
    background: Background, has_text: bool
) -> None:
    vectors = [
        learn(*positive).add(negative=negative).direct(background, has_text=has_text)[0]
        for positive, negative in (([PHOTOS], ()), ([PHOTOS], OTHERS), ((), OTHERS))
    ]
    alike, other = (background.project(each[0].embedding)[0] for each in (PHOTOS, OTHERS))
    assert vectors[0] @ alike > 0
    assert vectors[1] @ other < vectors[0] @ other
    assert vectors[2] @ other < 0


def test_photo_of_both_kinds_is_refused_and_named() -> None:
    for lesson, positive, negative, words in (
        (learn(), PHOTOS, [OTHERS[0], PHOTOS[3]], "Photo 4 of `positive`"),
        (learn(PHOTOS), [], [OTHERS[0], PHOTOS[3]], "Photo 2 of `negative`"),
        (learn().add(negative=OTHERS), [*PHOTOS, OTHERS[1]], [], "Photo 10 of `positive`"),
    ):
        with pytest.raises(InvalidLabelSet, match=f"{words} is an example of the other kind"):
            lesson.add(positive, negative)


def test_lesson_is_read_as_it_was_written(background: Background) -> None:
    for lesson in (learn(PHOTOS).add(negative=OTHERS), learn(PHOTOS[:1]), learn()):
        content = lesson.to_bytes()
        found = read_lesson(content)
        assert found.to_bytes() == content
        assert (found.positive.digests.tolist(), found.negative.count) == (
            lesson.positive.digests.tolist(),
            lesson.negative.count,
        )
        assert_equal(found.add(PHOTOS), lesson.add(PHOTOS), background)


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
def test_damaged_lesson_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidLabelSet, match="damaged"):
        read_lesson(change(learn(PHOTOS).to_bytes()))
