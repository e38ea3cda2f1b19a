"""What a label learns from photos: sums of their embeddings, and the score that follows.

With f the photo's embedding, x the whitened f, w the mean x of the examples and z = w . x in
deviations from other photos, the logit is

    text + 0.1 d (z - 5) - 0.02 d' z'

d is the separation: the mean z of each example under the w of the others. d' and z' are those of
the photos that do not show the label. Without a text, the first part is 0.08 d (z - 7) - 2.5. Each
is linear in f. The numbers were fitted on labels of caltech101 and coco80; a fitted offset that
depends on d gains nothing.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidLabelSet
from service.labels.background import Background, Vector

_WEIGHT, _CENTRE = 0.1, 5.0
_BARE_WEIGHT, _BARE_CENTRE, _BARE_LOGIT = 0.08, 7.0, -2.5
_NEGATIVE_WEIGHT = 0.02
_LONE_SEPARATION = 3.0
_MOST_SEPARATION = 8.0

# Signs of random projections. Two whitened embeddings with a cosine of 0.95 differ in 26 of them on
# average, with a cosine of 0.8 in 52.
_SKETCH_BITS = 256
_MOST_DIFFERENT_BITS = 26
_DIGEST_BYTES = 32
_HEADER = struct.Struct("<4sIIIdd")
_MAGIC = b"EX1\0"


class Example(NamedTuple):
    """A photo that a label learns from."""

    digest: bytes  # SHA-256 of the file
    embedding: Vector  # whitened


@dataclass(frozen=True, eq=False)
class Examples:
    """The photos of one kind that a label has learnt from, without the photos.

    Attributes:
        total: sum of the whitened embeddings, float32 [D].
        squares: sum of their squared lengths.
        digests: SHA-256 of each file.
        sketches: 256 signs of random projections of each, 32 bytes.
    """

    total: Vector
    squares: float = 0.0
    digests: tuple[bytes, ...] = ()
    sketches: tuple[bytes, ...] = ()

    @property
    def count(self) -> int:
        """The number of different photos."""
        return len(self.digests)

    @property
    def mean(self) -> Vector:
        """The mean whitened embedding of at least one photo, float32 [D]."""
        return self.total / np.float32(self.count)

    def add(self, examples: Sequence[Example]) -> "Examples":
        """Returns the sums with more photos, without those that are the same or nearly so."""
        total, squares = self.total.astype(np.float64), self.squares
        digests, sketches = list(self.digests), list(self.sketches)
        for digest, embedding in examples:
            sketch = _make_sketch(embedding)
            if digest in digests or any(_is_near(sketch, other) for other in sketches):
                continue
            total += embedding
            squares += float(embedding @ embedding)
            digests.append(digest)
            sketches.append(sketch)
        return Examples(total.astype(np.float32), squares, tuple(digests), tuple(sketches))

    def separate(self, background: Background) -> float:
        """Returns the separation, 0 to 8: the mean z of each photo under the mean of the others."""
        count = self.count
        if count < 2:
            return _LONE_SEPARATION * count
        length = float(self.total @ self.total)
        mean, deviation = background.measure(self.mean)
        # Means over the photos i, from the sums S and Q: of x_i . w_i, and of |w_i|^2, with
        # w_i = (S - x_i) / (count - 1).
        product = (length - self.squares) / (count * (count - 1))
        square = (length * (1 - 2 / count) + self.squares / count) / (count - 1) ** 2
        deviation *= np.sqrt(max(square, 0.0) * count**2 / max(length, 1e-12))
        return float(np.clip((product - mean) / max(deviation, 1e-6), 0.0, _MOST_SEPARATION))


@dataclass(frozen=True, eq=False)
class Lesson:
    """All that a label has learnt from photos."""

    positive: Examples
    negative: Examples

    @property
    def count(self) -> int:
        """The number of different photos of both kinds."""
        return self.positive.count + self.negative.count

    def add(self, positive: Sequence[Example] = (), negative: Sequence[Example] = ()) -> "Lesson":
        """Returns the lesson with more photos.

        Raises `InvalidLabelSet` for a file that would be a positive and a negative example.
        """
        both = {each.digest for each in positive} | set(self.positive.digests)
        both &= {each.digest for each in negative} | set(self.negative.digests)
        for kind, examples in (("positive", positive), ("negative", negative)):
            for place, example in enumerate(examples, start=1):
                if example.digest in both:
                    raise InvalidLabelSet(
                        f"Photo {place} of `{kind}` is an example of the other kind too: leave it "
                        "out of one, or send `replace=true` with all examples"
                    )
        return Lesson(self.positive.add(positive), self.negative.add(negative))

    def direct(self, background: Background, *, has_text: bool) -> tuple[Vector, float]:
        """Returns v [D] and b: v . f + b is added to the label's calibrated logit, 0 without."""
        vector = np.zeros(background.width, np.float32)
        shift = 0.0
        if self.positive.count:
            weight, centre = (_WEIGHT, _CENTRE) if has_text else (_BARE_WEIGHT, _BARE_CENTRE)
            weight *= self.positive.separate(background)
            direction, offset = background.project(self.positive.mean)
            vector += np.float32(weight) * direction
            shift += weight * (offset - centre)
        if self.negative.count:
            weight = _NEGATIVE_WEIGHT * self.negative.separate(background)
            direction, offset = background.project(self.negative.mean)
            vector -= np.float32(weight) * direction
            shift -= weight * offset
        return vector, shift if has_text else shift + _BARE_LOGIT

    def to_bytes(self) -> bytes:
        """Returns the lesson as the label store and files have it."""
        parts = [self.positive, self.negative]
        header = _HEADER.pack(
            _MAGIC, len(self.positive.total), *(each.count for each in parts),
            *(each.squares for each in parts),
        )  # fmt: skip
        arrays = [np.asarray(each.total, "<f4").tobytes() for each in parts]
        rows = [b"".join((*each.digests, *each.sketches)) for each in parts]
        return b"".join((header, *arrays, *rows))


@cache
def _make_projections(width: int) -> NDArray[np.float32]:
    generator = np.random.Generator(np.random.PCG64(0))
    return generator.standard_normal((width, _SKETCH_BITS), np.float32)


def _make_sketch(embedding: Vector) -> bytes:
    return np.packbits(embedding @ _make_projections(len(embedding)) > 0).tobytes()


def _is_near(sketch: bytes, other: bytes) -> bool:
    different = int.from_bytes(sketch) ^ int.from_bytes(other)
    return different.bit_count() <= _MOST_DIFFERENT_BITS


def make_lesson(width: int) -> Lesson:
    """Returns the lesson of a label that has no examples yet, for embeddings [D] of this width."""
    nothing = Examples(np.zeros(width, np.float32))
    return Lesson(nothing, nothing)


def read_lesson(content: bytes) -> Lesson:
    """Reads what `to_bytes` returned; raises `InvalidLabelSet` if it is damaged."""
    try:
        magic, width, *numbers = _HEADER.unpack_from(content)
        counts, squares = numbers[:2], numbers[2:]
        size = _HEADER.size + 8 * width + 2 * _DIGEST_BYTES * sum(counts)
        totals = np.frombuffer(content, "<f4", 2 * width, _HEADER.size).reshape(2, width)
    except (struct.error, ValueError) as error:
        raise InvalidLabelSet("The examples of a label are damaged") from error
    if magic != _MAGIC or size != len(content) or not np.isfinite((*squares, *totals.flat)).all():
        raise InvalidLabelSet("The examples of a label are damaged")
    start = _HEADER.size + 8 * width
    rows = [content[i : i + _DIGEST_BYTES] for i in range(start, size, _DIGEST_BYTES)]
    middle = 2 * counts[0]
    parts = []
    for total, square, mine in zip(totals, squares, (rows[:middle], rows[middle:]), strict=True):
        half = len(mine) // 2
        parts.append(
            Examples(total.astype(np.float32), square, tuple(mine[:half]), tuple(mine[half:]))
        )
    return Lesson(*parts)
