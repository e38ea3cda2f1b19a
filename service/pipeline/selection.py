"""A question and the label sets that it names become a selection, pinned until the answer.

In: a `Question` and snapshots of label sets. Out: a `Selection`: which labels of which set may be
in the answer, and what the engine has to run for them. Next: `engine.py`, then `scoring.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.errors import ConflictingLabels, UnknownLabel
from service.labels.label_set import LabelSet, QueryArray

Threshold = float | Literal["calibrated"]
Explain = Literal["map", "overlay"]


@dataclass(frozen=True, eq=False)
class SomeQueries:
    """A few rows of a matrix of queries; slices copy them, so that a request that waits holds none.

    Attributes:
        queries: float32 [L, K], the whole matrix.
        chosen: the n rows that are meant.
    """

    queries: QueryArray
    chosen: NDArray[np.intp]

    def __len__(self) -> int:
        """The number of rows, n."""
        return len(self.chosen)

    def __getitem__(self, rows: slice) -> QueryArray:
        """Returns a copy of some of the rows, float32 [m, K]."""
        return self.queries[self.chosen[rows]]


Head = QueryArray | SomeQueries | None
"""What the engine runs for one set: the queries [L, K] of the open head, all or some; None is the
trained head."""


@dataclass(frozen=True)
class Question:
    """What a client wants to know about an image.

    Attributes:
        top_k: most labels to answer with, 1 or more; more than there are means all; None
            sets no limit.
        threshold: a score (0..1) for every label, `calibrated` for each label's own, or
            None: no threshold where `top_k` is given, else `calibrated`.
        include: names to choose from; empty means all labels.
        exclude: names never to answer with.
        label_set: names of label sets; empty means the default set, or none where there are
            candidate labels.
        candidate_labels: labels for this request alone.
        min_version: least version of the label store that the answer has to know.
        explain: whether each label comes with its map (`map`), and whether that is drawn for
            people too (`overlay`); None for neither.
    """

    top_k: int | None = None
    threshold: Threshold | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    label_set: tuple[str, ...] = ()
    candidate_labels: tuple[str, ...] = ()
    min_version: int | None = None
    explain: Explain | None = None

    def __post_init__(self) -> None:
        """Refuses values out of range, which the callers check before.

        Raises:
            ValueError: `top_k` or `threshold` is out of range.
        """
        if self.top_k is not None and self.top_k < 1:
            raise ValueError("top_k has to be 1 or more")
        if isinstance(self.threshold, float | int) and not 0.0 <= self.threshold <= 1.0:
            raise ValueError("threshold has to be between 0 and 1")


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
