"""Chooses the labels that may be in an answer, from snapshots of the label sets asked for."""

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import RANKED
from service.engine.heads import Head
from service.errors import (
    ConflictingLabels,
    NotMeasured,
    UnknownCategory,
    UnknownLabel,
    UnknownParent,
)
from service.labels.label_set import LabelSet
from service.labels.words import Lexicon
from service.pipeline.found import FoundRule, find_needed, make_rule
from service.question import Question, Threshold

# The screen costs as much as scoring 90 labels; of 200 it leaves out 110.
_MIN_SCREENED = 200
# A screen for fewer labels would miss some: its recall was measured for the best 20.
_MIN_WANTED = 10
# The screen keeps half of a set for the best fifth.
_MOST_WANTED = 5
_NO_WORDS = Lexicon()


@dataclass(frozen=True, eq=False)
class SelectedLabels:
    """The labels of one set that may be in the answer."""

    labels: LabelSet
    chosen: NDArray[np.intp]  # positions in the set, ascending, at least one
    head: Head  # of `chosen` if it is `SomeQueries`, else of the whole set
    rule: FoundRule


@dataclass(frozen=True, eq=False)
class Selection:
    """A question with snapshots of the label sets that answer it, in the order of the question."""

    question: Question
    sets: tuple[LabelSet, ...]
    parts: tuple[SelectedLabels, ...]  # of the sets with a label that may be in the answer
    # Set name -> labels of a registered set that an earlier set answers instead, by its thresholds.
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: Lexicon = _NO_WORDS  # in the language of the answer
    # Words of the question that are no names -> the labels or parents that they mean.
    resolved: Mapping[str, str] = field(default_factory=dict)

    @property
    def lang(self) -> str | None:
        """The language of translations in the answer."""
        return self.words.lang

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

    @cached_property
    def embeds(self) -> bool:
        """Whether the answer needs the photo's embedding."""
        return bool(self.question.embedding) or any(part.labels.embeds for part in self.parts)

    def describe_hidden(self) -> str:
        """Returns one line about `hidden`, if there are some."""
        counts = ", ".join(f"{len(labels)} of {name}" for name, labels in self.hidden.items())
        return f"labels answered by a set named before theirs: {counts}"

    def list_notes(self, bundle: Path) -> list[str]:
        """Returns what a user should know of all answers; `bundle` is the bundle's folder."""
        notes = [self.describe_hidden()] if self.hidden else []
        if names := [labels.name for labels in self.sets if labels.ranked]:
            notes.append(f"scores of {', '.join(names)}: {RANKED.format(bundle)}")
        return notes

    @property
    def num_labels(self) -> int:
        """The number of labels that may be in the answer."""
        return sum(len(part.chosen) for part in self.parts)


def select_labels(
    sets: Sequence[LabelSet], question: Question, lexicon: Lexicon = _NO_WORDS
) -> Selection:
    """Chooses the labels that may be in the answer; the first set with a name answers it.

    `lexicon` has the bundle's words and the default language. Raises UnknownLabel, AmbiguousWord
    or ConflictingLabels for names in `include` and `exclude`, UnknownLanguage, UnknownCategory,
    UnknownParent, and NotMeasured for a `threshold` that a set does not have.
    """
    sets = _use_threshold(sets, question.threshold)
    dictionaries = [labels.dictionary for labels in sets]
    # Candidates may be words of any of the languages.
    words = lexicon.speak(question.lang, dictionaries, of_sets=not question.candidate_labels)
    resolved = {word: name for labels in sets for word, name in labels.resolved.items()}
    narrowed = question.include or question.exclude or question.category or question.parent
    if len(sets) == 1 and not narrowed:
        part = _select(sets[0], sets[0].all_positions, question, is_alone=True)
        return Selection(question, tuple(sets), (part,), {}, words, resolved)
    known = ChainMap(*(labels.positions for labels in sets))
    names = words.find_known([*(question.include or ()), *(question.exclude or ())], known)
    if unknown := tuple(dict.fromkeys(name for name in names.values() if name not in known)):
        other = words.find_elsewhere(unknown[0], known)
        searched = [labels.name for labels in sets]
        raise UnknownLabel(unknown, searched, words.list_like(known), other)
    include, exclude = (
        [names[word] for word in given or ()] for given in (question.include, question.exclude)
    )
    parents = _find_parents(sets, question, words)
    resolved |= {word: name for word, name in {**names, **parents}.items() if word != name}
    taken = set(exclude)  # and then the names that an earlier set answers
    conflicting = tuple(name for name in dict.fromkeys(include) if name in taken)
    if conflicting:
        raise ConflictingLabels(conflicting)
    parts, hidden = [], {}
    for labels, members in _find_members(sets, question, parents.values()):
        positions = labels.positions
        chosen = np.full(len(positions), not include)
        chosen[[positions[name] for name in include if name in positions]] = True
        chosen &= members
        shared = taken & positions.keys()
        chosen[[positions[name] for name in shared]] = False
        if shared and labels.origin == "store":
            lost = shared.difference(exclude).intersection(include or shared)
            if lost:
                hidden[labels.name] = tuple(name for name in labels.names if name in lost)
        taken.update(positions, labels.resolved.values())
        if chosen.any():
            some = labels.all_positions if chosen.all() else np.flatnonzero(chosen)
            parts.append(_select(labels, some, question, is_alone=len(sets) == 1))
    return Selection(question, tuple(sets), tuple(parts), hidden, words, resolved)


def _use_threshold(sets: Sequence[LabelSet], threshold: Threshold | None) -> Sequence[LabelSet]:
    """Returns the sets, with their thresholds for a purpose if it is one; raises NotMeasured."""
    if not isinstance(threshold, str) or threshold == "calibrated":
        return sets
    used = [labels.use(threshold) for labels in sets]
    missing = [labels for labels, changed in zip(sets, used, strict=True) if changed is None]
    if missing:
        photos = dict.fromkeys(labels.source.measured_on for labels in missing)
        names = tuple(labels.name for labels in missing)
        raise NotMeasured(names, threshold, " ".join(filter(None, photos)))
    return [changed for changed in used if changed is not None]


def _find_parents(sets: Sequence[LabelSet], question: Question, words: Lexicon) -> dict[str, str]:
    """Returns the parents that words mean; raises UnknownParent."""
    if not question.parent:
        return {}
    known = dict.fromkeys(name for labels in sets for name in labels.by_parent)
    parents = words.find_known(question.parent, known)
    if unknown := tuple(name for name in parents.values() if name not in known):
        raise UnknownParent(unknown, tuple(known), words.list_like(known))
    return parents


def _find_members(
    sets: Sequence[LabelSet], question: Question, parents: Collection[str]
) -> list[tuple[LabelSet, NDArray[np.bool_] | np.bool_]]:
    """Returns each set to search with a mask of its labels; raises UnknownCategory.

    If categories or parents are asked for, sets without any are left out: they must not hide labels
    of others.
    """
    members: list[tuple[LabelSet, NDArray[np.bool_] | np.bool_]] = [(s, np.True_) for s in sets]
    if question.category:
        known = dict.fromkeys(name for labels in sets for name in labels.by_category)
        unknown = tuple(name for name in dict.fromkeys(question.category) if name not in known)
        if unknown:
            raise UnknownCategory(unknown, [labels.name for labels in sets], tuple(known))
        members = [
            (labels, labels.find_members(labels.by_category, question.category))
            for labels in sets
            if labels.by_category
        ]
    if parents:
        members = [
            (labels, mask & labels.find_members(labels.by_parent, parents))
            for labels, mask in members
            if labels.by_parent
        ]
    return members


def _select(
    labels: LabelSet, chosen: NDArray[np.intp], question: Question, *, is_alone: bool
) -> SelectedLabels:
    rule = make_rule(question, labels, is_alone=is_alone)
    if labels.activation == "softmax":  # needs all logits
        return SelectedLabels(labels, chosen, labels.source.choose_head(None), rule)
    head = labels.source.choose_head(chosen)
    if labels.keys is not None and head is labels.queries and not question.include:
        threshold, needed = find_needed(question, rule, labels, chosen)
        wanted = max(_MIN_WANTED, needed) + labels.num_learnt  # the screen keeps them all
        if len(chosen) >= max(_MIN_SCREENED, _MOST_WANTED * wanted) and threshold != 0:
            head = labels.screen(threshold, wanted, chosen)
    return SelectedLabels(labels, chosen, head, rule)
