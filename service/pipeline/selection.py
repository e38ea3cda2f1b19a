"""A question and the label sets that it names become a selection, pinned until the answer.

In: a `Question` and snapshots of label sets. Out: a `Selection`: which labels of which set may be
in the answer, and what the engine has to run for them. Next: `engine.py`, then `scoring.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import Head, SomeQueries
from service.errors import ConflictingLabels, UnknownLabel
from service.labels.label_set import LabelSet
from service.labels.question import Question


@dataclass(frozen=True, eq=False)
class Part:
    """The labels of one set that may be in the answer.

    Attributes:
        labels: the set.
        chosen: their positions in it, ascending, at least one.
        head: what the engine runs; its logits are those of `chosen` where it is `SomeQueries`,
            else those of the whole set.
    """

    labels: LabelSet
    chosen: NDArray[np.intp]
    head: Head


@dataclass(frozen=True, eq=False)
class Selection:
    """What a request asks, and the snapshots it is answered from.

    Attributes:
        question: what the client asks.
        sets: the label sets that it names, in its order.
        parts: those of them that have a label to choose from, in the same order.
    """

    question: Question
    sets: tuple[LabelSet, ...]
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The names of the sets as one."""
        return "+".join(labels.name for labels in self.sets)

    @property
    def version(self) -> str:
        """The versions of the sets as one."""
        return "+".join(labels.version for labels in self.sets)

    @property
    def heads(self) -> tuple[Head, ...]:
        """What the engine has to run, one entry for each part."""
        return tuple(part.head for part in self.parts)

    @property
    def num_labels(self) -> int:
        """How many labels there are to choose from."""
        return sum(len(part.chosen) for part in self.parts)


def select_labels(sets: Sequence[LabelSet], question: Question) -> Selection:
    """Chooses the labels that may be in the answer.

    A name that stands in several sets is answered once, from the first of them.

    Raises:
        UnknownLabel: `include` or `exclude` has names that stand in none of the sets.
        ConflictingLabels: a name is in both.
    """
    if len(sets) == 1 and not question.include and not question.exclude:
        return Selection(
            question, tuple(sets), (Part(sets[0], sets[0].everything, sets[0].queries),)
        )
    include = _resolve_names(sets, question.include)
    exclude = _resolve_names(sets, question.exclude)
    unknown = tuple(
        name
        for name in dict.fromkeys(include + exclude)
        if not any(name in labels.positions for labels in sets)
    )
    if unknown:
        raise UnknownLabel(unknown)
    excluded = set(exclude)
    conflicting = tuple(name for name in dict.fromkeys(include) if name in excluded)
    if conflicting:
        raise ConflictingLabels(conflicting)
    parts = []
    seen: set[str] = set()
    for labels in sets:
        chosen = np.full(len(labels.names), not include)
        chosen[_positions(labels, include)] = True
        chosen[_positions(labels, exclude)] = False
        chosen[_positions(labels, seen & labels.positions.keys())] = False
        seen |= labels.positions.keys()
        if chosen.any():
            parts.append(_make_part(labels, np.flatnonzero(chosen)))
    return Selection(question, tuple(sets), tuple(parts))


def _make_part(labels: LabelSet, chosen: NDArray[np.intp]) -> Part:
    queries = labels.queries
    # Requests that share the whole matrix share a run, which is worth a few labels too many.
    if queries is None or 2 * len(chosen) >= len(queries):
        return Part(labels, chosen, queries)
    return Part(labels, chosen, SomeQueries(queries, chosen))


def _positions(labels: LabelSet, names: Iterable[str]) -> list[int]:
    return [labels.positions[name] for name in names if name in labels.positions]


def _resolve_names(sets: Sequence[LabelSet], names: tuple[str, ...]) -> tuple[str, ...]:
    # Names of open labels are in the form NFC, whatever form the client writes.
    return tuple(
        name
        if any(name in labels.positions for labels in sets)
        else unicodedata.normalize("NFC", name).strip()
        for name in names
    )
