"""The lessons of the labels of a set: their kinds, how they are stored, and their sum."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidLabelSet
from service.fields import Purpose
from service.labels.sources.examples import Examples
from service.labels.sources.fit import Fit
from service.labels.sources.source import Lesson, Measured, Taught
from service.labels.whitening import Vector, Vectors, Whitening

KINDS: dict[str, type[Lesson]] = {Fit.kind: Fit, Examples.kind: Examples}
"""In the order in which they are applied to a label: examples are added to a fit."""

Lessons = Mapping[str, Mapping[str, Lesson]]
"""Label -> kind -> lesson."""

_KEY_CHARACTERS = 64  # of the store's column


def find_kinds(encoder: str) -> dict[str, str]:
    """Returns key -> kind of the lessons with an encoder, by its fingerprint.

    Version 1.1 had examples only, under the fingerprint itself, and ignores other keys.
    """
    keys = {kind: f"{kind}:{encoder}"[:_KEY_CHARACTERS] for kind in KINDS}
    return {key: kind for kind, key in (keys | {Examples.kind: encoder}).items()}


def read_lesson(kind: str, content: bytes) -> Lesson:
    """Reads a lesson. Raises `InvalidLabelSet` if it is damaged, or of a newer version's kind."""
    if kind not in KINDS:
        raise InvalidLabelSet(f"A label has learnt by {kind}, which this version does not know")
    return KINDS[kind].from_bytes(content)


def list_contents(lessons: Lessons) -> list[tuple[str, str, bytes]]:
    """Returns label, kind and content of each lesson."""
    rows = ((label, kind, each) for label, some in lessons.items() for kind, each in some.items())
    return [(label, kind, each.to_bytes()) for label, kind, each in rows]


@dataclass(frozen=True, eq=False)
class LearntLabels:
    """M labels of a set that have learnt from photos; `v . f + b` is added to their logits."""

    positions: NDArray[np.intp]  # in the set, [M], ascending
    lessons: tuple[Mapping[str, Lesson], ...]  # by kind
    taught: tuple[Mapping[str, Taught], ...]  # by kind
    vectors: Vectors  # v, [M, D]
    shifts: NDArray[np.float64]  # b, [M]

    def name_sources(self, positions: NDArray[np.intp], other: str) -> list[str]:
        """Returns the last kind of labels at these positions of the set, `other` without one."""
        return [self._kinds.get(position, other) for position in positions.tolist()]

    @cached_property
    def _kinds(self) -> dict[int, str]:
        last = ([*some][-1] for some in self.taught)
        return dict(zip(self.positions.tolist(), last, strict=True))

    @cached_property
    def pairs(self) -> list[tuple[int, tuple[float, float]]]:
        """Positions of labels with a scale and shift of their own, and these."""
        return [(position, each.pair) for position, each in self._each if each.pair is not None]

    @cached_property
    def thresholds(self) -> list[tuple[int, Measured]]:
        """Positions of labels with a threshold from photos, and these."""
        return [(p, each.threshold) for p, each in self._each if each.threshold is not None]

    @cached_property
    def points(self) -> list[tuple[int, Mapping[Purpose, Measured]]]:
        """Positions of labels with thresholds by purpose, and these."""
        return [(position, each.by_purpose) for position, each in self._each if each.by_purpose]

    @property
    def _each(self) -> list[tuple[int, Taught]]:
        rows = zip(self.positions.tolist(), self.taught, strict=True)
        return [(position, each) for position, some in rows for each in some.values()]

    def locate(self, position: int) -> tuple[Vector, bool] | None:
        """Returns v [D] of a label, and whether it says where in a photo the label is."""
        row = int(self.positions.searchsorted(position))
        if row == len(self.positions) or self.positions[row] != position:
            return None
        return self.vectors[row], any(each.is_drawn for each in self.taught[row].values())

    def describe(self, row: int) -> dict[str, Any]:
        """Returns what a label has learnt, by kind, as JSON values."""
        return {kind: {**each.described} for kind, each in self.taught[row].items()}


def teach_labels(
    lessons: Mapping[int, Mapping[str, Lesson]],
    whitening: Whitening,
    known: Mapping[Lesson, Taught],
    *,
    has_text: bool,
) -> LearntLabels:
    """Returns what labels learn, by position, ascending; measures lessons that are not `known`."""
    taught = [_teach(some, whitening, known, has_text=has_text) for some in lessons.values()]
    return LearntLabels(
        np.array([*lessons]),
        tuple(lessons.values()),
        tuple(taught),
        np.stack([np.sum([t.vector for t in some.values()], axis=0) for some in taught]),
        np.array([sum(t.shift for t in some.values()) for some in taught]),
    )


def _teach(
    lessons: Mapping[str, Lesson],
    whitening: Whitening,
    known: Mapping[Lesson, Taught],
    *,
    has_text: bool,
) -> dict[str, Taught]:
    taught: dict[str, Taught] = {}
    for kind in KINDS:
        if (lesson := lessons.get(kind)) is not None:
            taught[kind] = known.get(lesson) or lesson.teach(whitening, has_text=has_text)
            has_text = has_text or taught[kind].pair is not None
    return taught


def list_known(learnt: Iterable[LearntLabels]) -> dict[Lesson, Taught]:
    """Returns the effects of lessons that were measured before."""
    pairs = (zip(each.lessons, each.taught, strict=True) for each in learnt)
    return {
        some[kind]: effect
        for rows in pairs
        for some, taught in rows
        for kind, effect in taught.items()
    }
