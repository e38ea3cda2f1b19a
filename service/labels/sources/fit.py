"""What a label learns from an archive's tags: a direction, and scale and shift of its text's logit.

They are computed for all labels at once, by `ridge`. The score is a probability for that archive.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError

from service.bundle.card import Record
from service.errors import InvalidLabelSet
from service.fields import ThresholdName
from service.labels.sources.source import Point, Share, Taught
from service.labels.whitening import Vector, Whitening

_HEADER = struct.Struct("<4sII")
_MAGIC = b"FT1\0"
_DAMAGED = "What a label has learnt from tags is damaged: learn them again"
_MOST = 1e6
_SAME_TEXT = 0.98  # cosine of queries

_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(ge=-_MOST, le=_MOST)]


class FitCounts(Record):
    """Photos that a label was fitted to, and average precisions on others (folds)."""

    photos: _Count = Field(description="That have a tag of any kind, or were corrected.")
    positive: _Count = Field(description="With the tag.")
    negative: _Count = Field(description="From which the user deleted it.")
    text_ap: Share | None = Field(description="Average precision of the text alone.")
    learnt_ap: Share = Field(description="Average precision of the fit.")


class FitFigures(FitCounts):
    """The numbers of a fit; precision and recall are of photos that were not fitted (folds)."""

    scale: _Number  # of the text's logit
    shift: _Number
    points: dict[ThresholdName, Point]  # at least `calibrated`


@dataclass(frozen=True, eq=False)
class Fit:
    """The logit is scale * text + shift + vector . f, with f the photo's embedding."""

    vector: Vector  # [D]
    figures: FitFigures
    query: Vector | None  # of the text, [K]; None without a text

    kind: ClassVar[str] = "fit"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what `to_bytes` returned. Raises `InvalidLabelSet` if it is damaged."""
        try:
            magic, size, width = _HEADER.unpack_from(content)
            end = _HEADER.size + size
            figures = FitFigures.model_validate_json(content[_HEADER.size : end])
            numbers = np.frombuffer(content, "<f4", offset=end).astype(np.float32)
            vector, query = np.split(numbers, [width])
        except (struct.error, ValueError, ValidationError) as error:
            raise InvalidLabelSet(_DAMAGED) from error
        is_whole = magic == _MAGIC and len(vector) == width > 0
        if not (is_whole and "calibrated" in figures.points and (np.abs(numbers) < _MOST).all()):
            raise InvalidLabelSet(_DAMAGED)
        return cls(vector, figures, query if len(query) else None)

    def to_bytes(self) -> bytes:
        """Returns the fit as the label store and files have it."""
        figures = self.figures.model_dump_json().encode()
        header = _HEADER.pack(_MAGIC, len(figures), len(self.vector))
        query = np.zeros(0) if self.query is None else self.query
        numbers = (row.astype("<f4").tobytes() for row in (self.vector, query))
        return b"".join((header, figures, *numbers))

    def teach(
        self, whitening: Whitening, query: Vector | None, *, has_logit: bool
    ) -> Taught | None:
        if not self.is_of(query):
            return None
        if len(self.vector) != whitening.width:
            raise InvalidLabelSet("A label learnt embeddings of another width than the model's")
        figures = self.figures
        pair = figures.scale, figures.shift
        lesson = self, self.vector, 0.0, self._describe()
        return Taught(*lesson, pair=pair, points=figures.points)

    def is_of(self, query: Vector | None) -> bool:
        """Returns whether it was fitted to this text; precisions change queries a little."""
        if query is None or self.query is None:
            return query is self.query
        lengths = float(np.linalg.norm(query) * np.linalg.norm(self.query))
        return len(query) == len(self.query) and float(query @ self.query) > _SAME_TEXT * lengths

    def is_like(self, other: "Fit") -> bool:
        """Returns whether it was fitted to as many photos, and does nearly the same."""
        counts = {"photos", "positive", "negative"}
        ours, theirs = (fit.figures.model_dump(include=counts) for fit in (self, other))
        if ours != theirs or len(self.vector) != len(other.vector):
            return False
        close = 1e-3 * float(np.abs(self.vector).max())
        return bool(np.allclose(self.vector, other.vector, atol=close))

    def _describe(self) -> dict[str, Any]:
        points = self.figures.points
        precise, usual = points.get("precise"), points["calibrated"]
        return {
            **self.figures.model_dump(exclude={"scale", "shift", "points"}),
            **usual.model_dump(),
            "precise": precise.model_dump() if precise and precise.is_own else None,
            "this_model": True,
        }
