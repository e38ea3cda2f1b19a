"""What a label learns from single photos: sums of their embeddings, and the score that follows.

With f the photo's embedding, x the whitened f, w the mean x of the examples and z = w . x in
deviations from other photos, the logit is

    text + 0.1 d (z - 5) - 0.02 d' z'

d is the separation: the mean z of each example under the w of the others. d' and z' are those of
the photos that do not show the label. Without a text, the first part is 0.08 d (z - 7) - 2.5. Each
is linear in f. The numbers were fitted on labels of caltech101 and coco80; a fitted offset that
depends on d gains nothing.
"""

import struct
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidLabelSet
from service.labels.sources.source import Taught
from service.labels.whitening import Vector, Whitening

_WEIGHT, _CENTRE = 0.1, 5.0
_BARE_WEIGHT, _BARE_CENTRE, _BARE_LOGIT = 0.08, 7.0, -2.5
_NEGATIVE_WEIGHT = 0.02
_LONE_SEPARATION = 3.0
_MOST_SEPARATION = 8.0

# Signs of random projections. Two whitened embeddings with a cosine of 0.95 differ in 26 of them on
# average. Of copies of 180 photos of caltech101, 34 finds 97 % of those brighter or cropped by 2 %,
# 91 % at 3/4 of the size, 84 % of JPEG quality 50 or cropped by 5 %, 32 % at half the size; with
# 26, 86, 76, 55 and 11 %. The closest of 600 pairs of photos of the same class differ in 43.
_SKETCH_BITS = 256
_MOST_DIFFERENT_BITS = 34
_MARK_BYTES = 32
_MOST_TOTAL = 1e12  # squares of larger ones may overflow
# Each has 64 bytes in the store, and a label learns nothing new from more.
_MOST_EXAMPLES = 10_000
_HEADER = struct.Struct("<4sIIIdd")
_MAGIC = b"EX1\0"
_DAMAGED = "The examples of a label are damaged: teach it again with `replace=true`"


class Example(NamedTuple):
    """A photo that a label learns from."""

    digest: bytes  # SHA-256 of the file
    embedding: Vector  # whitened


@dataclass(frozen=True, eq=False)
class ExampleSums:
    """The photos of one kind that a label has learnt from, without the photos."""

    total: Vector  # sum of the whitened embeddings, [D]
    squares: float  # sum of their squared lengths
    digests: NDArray[np.uint8]  # SHA-256 of each file, [n, 32]
    sketches: NDArray[np.uint8]  # 256 signs of random projections of each, [n, 32]

    @property
    def count(self) -> int:
        """The number of different photos."""
        return len(self.digests)

    @property
    def mean(self) -> Vector:
        """The mean whitened embedding of at least one photo, float32 [D]."""
        return self.total / np.float32(self.count)

    def add(self, examples: Sequence[Example]) -> "ExampleSums":
        """Adds photos that are not nearly the same. Raises `InvalidLabelSet` above 10,000."""
        total, squares = self.total.astype(np.float64), self.squares
        digests, sketches = self.digests, self.sketches
        for digest, embedding in examples:
            mark = np.frombuffer(digest, np.uint8)
            sketch = np.packbits(embedding @ _make_projections(len(embedding)) > 0)
            different = np.bitwise_count(sketches ^ sketch).sum(axis=1)
            is_near = (different <= _MOST_DIFFERENT_BITS).any()
            if is_near or (digests == mark).all(axis=1).any():
                continue
            total += embedding
            squares += float(embedding @ embedding)
            digests, sketches = np.vstack((digests, mark)), np.vstack((sketches, sketch))
        if len(digests) > _MOST_EXAMPLES:
            raise InvalidLabelSet(
                f"A label takes at most {_MOST_EXAMPLES} photos of each kind: start it anew with "
                "`replace=true`"
            )
        return ExampleSums(total.astype(np.float32), squares, digests, sketches)

    def separate(self, whitening: Whitening) -> float:
        """Returns the separation, 0 to 8: the mean z of each photo under the mean of the others."""
        count = self.count
        if count < 2:
            return _LONE_SEPARATION * count
        length = float(self.total @ self.total)
        mean, deviation = whitening.measure(self.mean)
        # Means over the photos i, from the sums S and Q: of x_i . w_i, and of |w_i|^2, with
        # w_i = (S - x_i) / (count - 1).
        product = (length - self.squares) / (count * (count - 1))
        square = (length * (1 - 2 / count) + self.squares / count) / (count - 1) ** 2
        deviation *= np.sqrt(max(square, 0.0) * count**2 / max(length, 1e-12))
        return float(np.clip((product - mean) / max(deviation, 1e-6), 0.0, _MOST_SEPARATION))


@dataclass(frozen=True, eq=False)
class Examples:
    """All that a label has learnt from single photos."""

    positive: ExampleSums
    negative: ExampleSums

    kind: ClassVar[str] = "examples"

    @classmethod
    def empty(cls, width: int) -> Self:
        """Returns no examples yet, for embeddings [D] of this width."""
        marks = np.zeros((0, _MARK_BYTES), np.uint8)
        nothing = ExampleSums(np.zeros(width, np.float32), 0.0, marks, marks)
        return cls(nothing, nothing)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what `to_bytes` returned. Raises `InvalidLabelSet` if it is damaged."""
        try:
            magic, width, *counts, first, second = _HEADER.unpack_from(content)
            totals = np.frombuffer(content, "<f4", 2 * width, _HEADER.size).reshape(2, width)
            marks = np.frombuffer(content, np.uint8, offset=_HEADER.size + totals.nbytes)
            parts = np.split(marks.reshape(-1, _MARK_BYTES), np.repeat(counts, 2).cumsum())
        except (struct.error, ValueError) as error:
            raise InvalidLabelSet(_DAMAGED) from error
        most = np.maximum(np.abs((first, second)).max(), np.abs(totals).max(initial=0))
        if magic != _MAGIC or 2 * sum(counts) * _MARK_BYTES != len(marks) or not most < _MOST_TOTAL:
            raise InvalidLabelSet(_DAMAGED)
        positive, negative = totals.astype(np.float32)
        return cls(
            ExampleSums(positive, first, *parts[:2]), ExampleSums(negative, second, *parts[2:4])
        )

    @property
    def count(self) -> int:
        """The number of different photos of both kinds."""
        return self.positive.count + self.negative.count

    def add(self, positive: Sequence[Example] = (), negative: Sequence[Example] = ()) -> "Examples":
        """Returns these and more photos.

        Raises `InvalidLabelSet` if a file is a positive and a negative example.
        """
        both = {photo.digest for photo in positive} | {*map(bytes, self.positive.digests)}
        both &= {photo.digest for photo in negative} | {*map(bytes, self.negative.digests)}
        for kind, examples in (("positive", positive), ("negative", negative)):
            for number, example in enumerate(examples, start=1):
                if example.digest in both:
                    raise InvalidLabelSet(
                        f"Photo {number} of `{kind}` is an example of the other kind too: leave it "
                        "out of one, or send `replace=true` with all examples"
                    )
        return Examples(self.positive.add(positive), self.negative.add(negative))

    def teach(self, whitening: Whitening, query: Vector | None, *, has_logit: bool) -> Taught:
        if len(self.positive.total) != whitening.width:
            raise InvalidLabelSet("The examples of a label are of another width than the model's")
        vector = np.zeros(whitening.width, np.float32)
        shift, separation = 0.0, self.positive.separate(whitening)
        if self.positive.count:
            weight, centre = (_WEIGHT, _CENTRE) if has_logit else (_BARE_WEIGHT, _BARE_CENTRE)
            weight *= separation
            direction, offset = whitening.project(self.positive.mean)
            vector += np.float32(weight) * direction
            shift += weight * (offset - centre)
        if self.negative.count:
            weight = _NEGATIVE_WEIGHT * self.negative.separate(whitening)
            direction, offset = whitening.project(self.negative.mean)
            vector -= np.float32(weight) * direction
            shift -= weight * offset
        shift = shift if has_logit else shift + _BARE_LOGIT
        is_drawn = self.positive.count > 0
        return Taught(self, vector, shift, self._describe(separation), is_drawn)

    def _describe(self, separation: float) -> dict[str, Any]:
        counts = {"positive": self.positive.count, "negative": self.negative.count}
        if self.positive.count < 2:
            which = "one photo" if self.positive.count else "negative photos only"
            meaning = f"unknown with {which}"
        else:
            how = ("not", "weakly", "fairly well", "clearly")[bisect((1, 3, 5), separation)]
            meaning = f"{how} told apart on these photos"
        told_apart = {"value": separation, "meaning": meaning}
        return {**counts, "separation": told_apart, "this_model": True}

    def to_bytes(self) -> bytes:
        """Returns the examples as the label store and files have them."""
        kinds = [self.positive, self.negative]
        counts, squares = [sums.count for sums in kinds], [sums.squares for sums in kinds]
        header = _HEADER.pack(_MAGIC, len(self.positive.total), *counts, *squares)
        totals = [sums.total.astype("<f4") for sums in kinds]
        marks = [array for sums in kinds for array in (sums.digests, sums.sketches)]
        return b"".join((header, *(array.tobytes() for array in (*totals, *marks))))


def add_examples(
    content: bytes | None, positive: Sequence[Example], negative: Sequence[Example]
) -> tuple[bytes, int]:
    """Returns examples as the store has them with more photos, at least one; and how many are new.

    Raises `InvalidLabelSet` as `Examples.add`, or if the `content` so far is damaged.
    """
    width = len((*positive, *negative)[0].embedding)
    earlier = Examples.from_bytes(content) if content else Examples.empty(width)
    examples = earlier.add(positive, negative)
    return examples.to_bytes(), examples.count - earlier.count


@cache
def _make_projections(width: int) -> NDArray[np.float32]:
    generator = np.random.Generator(np.random.PCG64(0))
    return generator.standard_normal((width, _SKETCH_BITS), np.float32)
