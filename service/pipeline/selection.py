"""Chooses the labels that may be in an answer, from snapshots of the label sets asked for."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engine.heads import Head, SomeQueries
from service.errors import ConflictingLabels, UnknownCategory, UnknownLabel
from service.labels.label_set import LabelSet
from service.question import Question

# The screen costs as much as scoring 90 labels; of 200 it leaves out 110.
_MIN_SCREENED = 200
# A screen for fewer labels would miss some: its recall was measured for the best 20.
_MIN_WANTED = 10
# The screen keeps half of a set for the best fifth.
_MOST_WANTED = 5


@dataclass(frozen=True, eq=False)
class SelectedLabels:
    """The labels of one set that may be in the answer."""

    labels: LabelSet
    chosen: NDArray[np.intp]  # positions in the set, ascending, at least one
    head: Head  # of `chosen` if it is `SomeQueries`, else of the whole set
    # Of each category of which only the best label may be in the answer: its places in `chosen`.
    best_only: tuple[NDArray[np.intp], ...] = ()


@dataclass(frozen=True, eq=False)
class Selection:
    """A question with snapshots of the label sets that answer it, in the order of the question."""

    question: Question
    sets: tuple[LabelSet, ...]
    parts: tuple[SelectedLabels, ...]  # of the sets with a label that may be in the answer
    # Labels of registered sets that an earlier set answers, with its threshold, by set.
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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

    def describe_hidden(self) -> str:
        """Returns one line about `hidden`, if there are some."""
        counts = ", ".join(f"{len(labels)} of {name}" for name, labels in self.hidden.items())
        return f"labels answered by a set named before theirs: {counts}"

    @property
    def num_labels(self) -> int:
        """The number of labels that may be in the answer."""
        return sum(len(part.chosen) for part in self.parts)


def select_labels(sets: Sequence[LabelSet], question: Question) -> Selection:
    """Chooses the labels that may be in the answer; the first set with a name answers it.

    Raises UnknownLabel or ConflictingLabels for names in `include` and `exclude`, and
    UnknownCategory.
    """
    if len(sets) == 1 and not (question.include or question.exclude or question.category):
        part = _make_part(sets[0], sets[0].all_positions, question)
        return Selection(question, tuple(sets), (part,))
    include, exclude = _read_names(sets, question)
    taken = set(exclude)  # and then the names that an earlier set answers
    parts, hidden = [], {}
    for labels in _drop_others(sets, question.category):
        positions = labels.positions
        chosen = np.full(len(positions), not include)
        chosen[[positions[name] for name in include if name in positions]] = True
        if question.category:
            chosen &= labels.find_members(question.category)
        shared = taken & positions.keys()
        chosen[[positions[name] for name in shared]] = False
        if shared and labels.origin == "store":
            lost = shared.difference(exclude).intersection(include or shared)
            if lost:
                hidden[labels.name] = tuple(name for name in labels.names if name in lost)
        if labels is not sets[-1]:  # 20 us for 1,000 names
            taken |= positions.keys()
        if chosen.any():
            some = labels.all_positions if chosen.all() else np.flatnonzero(chosen)
            parts.append(_make_part(labels, some, question))
    return Selection(question, tuple(sets), tuple(parts), hidden)


def _read_names(
    sets: Sequence[LabelSet], question: Question
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names to include and to exclude; raises UnknownLabel or ConflictingLabels."""
    include = _resolve_names(sets, question.include or ())
    exclude = _resolve_names(sets, question.exclude or ())
    unknown = tuple(name for name in dict.fromkeys(include + exclude) if not _is_known(sets, name))
    if unknown:
        known = [name for labels in sets for name in labels.names]
        raise UnknownLabel(unknown, [labels.name for labels in sets], known)
    left_out = set(exclude)
    conflicting = tuple(name for name in dict.fromkeys(include) if name in left_out)
    if conflicting:
        raise ConflictingLabels(conflicting)
    return include, exclude


def _drop_others(sets: Sequence[LabelSet], categories: Sequence[str] | None) -> Sequence[LabelSet]:
    """Returns the sets that have categories, if some are asked for; raises UnknownCategory."""
    if not categories:
        return sets
    known = dict.fromkeys(name for labels in sets for name in labels.category_positions)
    unknown = tuple(name for name in dict.fromkeys(categories) if name not in known)
    if unknown:
        raise UnknownCategory(unknown, [labels.name for labels in sets], tuple(known))
    return [labels for labels in sets if labels.categories is not None]


def _make_part(labels: LabelSet, chosen: NDArray[np.intp], question: Question) -> SelectedLabels:
    best_only = labels.best_only_positions
    if best_only and chosen is not labels.all_positions:
        found = (np.flatnonzero(np.isin(chosen, each, assume_unique=True)) for each in best_only)
        best_only = tuple(places for places in found if len(places))
    return SelectedLabels(labels, chosen, _choose_head(labels, chosen, question), best_only)


def _choose_head(labels: LabelSet, chosen: NDArray[np.intp], question: Question) -> Head:
    queries = labels.queries
    if queries is None:
        return None
    # A request for less than half of a set copies its rows; other requests share the matrix, and
    # with it a run. A softmax needs all logits.
    if labels.activation == "softmax":
        return queries
    if 2 * len(chosen) < len(queries):
        return SomeQueries(queries, chosen)
    threshold, wanted = question.threshold, _MIN_WANTED
    if threshold is None:
        if question.top_k is None:
            threshold = "calibrated"
        else:
            wanted = max(wanted, question.top_k)
    if (
        labels.keys is None
        or len(chosen) < max(_MIN_SCREENED, _MOST_WANTED * wanted)
        or question.include
        or threshold == 0
    ):
        return queries
    return labels.screen(threshold, wanted, chosen)


def _resolve_names(sets: Sequence[LabelSet], names: Sequence[str]) -> tuple[str, ...]:
    # Names of open labels are in the form NFC; clients may send any form.
    return tuple(
        name if _is_known(sets, name) else unicodedata.normalize("NFC", name).strip()
        for name in names
    )


def _is_known(sets: Sequence[LabelSet], name: str) -> bool:
    return any(name in labels.positions for labels in sets)
