"""Chooses the labels that may be in an answer, from snapshots of the label sets asked for."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import Head, SomeQueries
from service.errors import ConflictingLabels, UnknownLabel
from service.labels.label_set import LabelSet
from service.labels.question import Question


@dataclass(frozen=True, eq=False)
class Part:
    """The labels of one set that may be in the answer."""

    labels: LabelSet
    chosen: NDArray[np.intp]  # positions in the set, ascending, at least one
    head: Head  # its logits are of `chosen` if it is `SomeQueries`, else of the whole set


@dataclass(frozen=True, eq=False)
class Selection:
    """A question with snapshots of the label sets that answer it, in the order of the question."""

    question: Question
    sets: tuple[LabelSet, ...]
    parts: tuple[Part, ...]  # of the sets with a label that may be in the answer

    @property
    def name(self) -> str:
        """The names of the sets, joined by `+`."""
        return "+".join(labels.name for labels in self.sets)

    @property
    def version(self) -> str:
        """The versions of the sets, joined by `+`."""
        return "+".join(labels.version for labels in self.sets)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that the engine runs, one for each part."""
        return tuple(part.head for part in self.parts)

    @property
    def num_labels(self) -> int:
        """The number of labels that may be in the answer."""
        return sum(len(part.chosen) for part in self.parts)


def select_labels(sets: Sequence[LabelSet], question: Question) -> Selection:
    """Chooses the labels that may be in the answer; the first set with a name answers it.

    Raises UnknownLabel or ConflictingLabels for names in `include` and `exclude`.
    """
    if len(sets) == 1 and not question.include and not question.exclude:
        return Selection(
            question, tuple(sets), (Part(sets[0], sets[0].everything, sets[0].queries),)
        )
    include = _resolve_names(sets, question.include or ())
    exclude = _resolve_names(sets, question.exclude or ())
    unknown = tuple(name for name in dict.fromkeys(include + exclude) if not _is_known(sets, name))
    if unknown:
        known = [name for labels in sets for name in labels.names]
        raise UnknownLabel(unknown, [labels.name for labels in sets], known)
    excluded = set(exclude)
    conflicting = tuple(name for name in dict.fromkeys(include) if name in excluded)
    if conflicting:
        raise ConflictingLabels(conflicting)
    parts = []
    answered: set[str] = set()
    for labels in sets:
        positions = labels.positions
        chosen = np.full(len(positions), not include)
        for names, counts in (
            (include, True),
            (exclude, False),
            (answered & positions.keys(), False),
        ):
            chosen[[positions[name] for name in names if name in positions]] = counts
        answered |= positions.keys()
        if chosen.any():
            parts.append(_make_part(labels, np.flatnonzero(chosen)))
    return Selection(question, tuple(sets), tuple(parts))


def _make_part(labels: LabelSet, chosen: NDArray[np.intp]) -> Part:
    queries = labels.queries
    # A request for less than half of a set copies its rows; other requests share the matrix, and
    # with it a run. A softmax needs all logits.
    competes = labels.activation == "softmax"
    if queries is None or competes or 2 * len(chosen) >= len(queries):
        return Part(labels, chosen, queries)
    return Part(labels, chosen, SomeQueries(queries, chosen))


def _resolve_names(sets: Sequence[LabelSet], names: Sequence[str]) -> tuple[str, ...]:
    # Names of open labels are in the form NFC; clients may send any form.
    return tuple(
        name if _is_known(sets, name) else unicodedata.normalize("NFC", name).strip()
        for name in names
    )


def _is_known(sets: Sequence[LabelSet], name: str) -> bool:
    return any(name in labels.positions for labels in sets)
