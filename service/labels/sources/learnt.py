"""The lessons of the labels of a set: their kinds, how they are stored, and their sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import QueryArray
from service.errors import InvalidLabelSet
from service.labels.sources.examples import Examples
from service.labels.sources.fit import Fit
from service.labels.sources.source import Lesson, Taught
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
    rows = ((label, kind, some) for label, some in lessons.items() for kind in KINDS)
    return [(label, kind, some[kind].to_bytes()) for label, kind, some in rows if kind in some]


@dataclass(frozen=True, eq=False)
class LearntLabels:
    """M labels of a set that have learnt from photos; `v . f + b` is added to their logits."""

    positions: NDArray[np.intp]  # in the set, [M], ascending
    taught: tuple[Mapping[str, Taught], ...]  # by kind
    vectors: Vectors  # v, [M, D]
    shifts: NDArray[np.float64]  # b, [M]

    @cached_property
    def each(self) -> list[tuple[int, Taught]]:
        """What each lesson does, after the position of its label."""
        rows = zip(self.positions.tolist(), self.taught, strict=True)
        return [(position, each) for position, some in rows for each in some.values()]

    def name_sources(self, positions: NDArray[np.intp], other: str) -> list[str]:
        """Returns the last kind of labels at these positions of the set, `other` without one."""
        return [self._kinds.get(position, other) for position in positions.tolist()]

    @cached_property
    def _kinds(self) -> dict[int, str]:
        return {position: each.lesson.kind for position, each in self.each}

    def locate(self, position: int) -> tuple[Vector, bool] | None:
        """Returns v [D] of a label, and whether it says where in a photo the label is."""
        row = int(self.positions.searchsorted(position))
        if position not in self._kinds:
            return None
        return self.vectors[row], any(each.is_drawn for each in self.taught[row].values())


def teach_labels(
    lessons: Mapping[int, Mapping[str, Lesson]],
    whitening: Whitening,
    queries: QueryArray | None,
    old: LearntLabels | None,
) -> LearntLabels | None:
    """Returns what labels learn, by position, ascending; lessons of `old` are not measured again.

    `queries` [L, K] are those of the set. Labels whose lessons are all of another text are left
    out. Raises `InvalidLabelSet` if a lesson is of another width.
    """
    # A scale depends on the text, which may be another one now.
    known = {each.lesson: each for _, each in old.each if each.pair is None} if old else {}
    taught: dict[int, dict[str, Taught]] = {}
    for position, some in lessons.items():
        query = None if queries is None else queries[position]
        effects: dict[str, Taught] = {}
        for kind in [kind for kind in KINDS if kind in some]:
            has_logit = query is not None or any(each.pair for each in effects.values())
            lesson = some[kind]
            effect = known.get(lesson) or lesson.teach(whitening, query, has_logit=has_logit)
            if effect is not None:
                effects[kind] = effect
        if effects:
            taught[position] = effects
    if not taught:
        return None
    rows = [[*effects.values()] for effects in taught.values()]
    return LearntLabels(
        np.array([*taught]),
        tuple(taught.values()),
        np.stack([np.sum([each.vector for each in row], axis=0) for row in rows]),
        np.array([sum(each.shift for each in row) for row in rows]),
    )
