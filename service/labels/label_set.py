"""The label set as requests see it: an immutable snapshot, pinned by a request until its end."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from service.bundle import card
from service.engine.heads import Keys, LabelVectors, QueryArray, ScreenedQueries
from service.fields import Purpose
from service.labels.definition import Definition
from service.labels.sources.learnt import LearntLabels, Lessons, teach_labels
from service.labels.sources.source import Source, Taught, Texts, Trained, Untold
from service.labels.whitening import Whitening
from service.labels.words import Dictionary, Words, choose_words
from service.question import Threshold

# Questions whose arrays for the screened head a set caches.
_MAX_SCREENED = 16
# Estimated logits may be too low by this. Without it, labels with a larger scale than others lose
# ranks: of the 20 best of `everyday`, 99.7 % instead of 99.95 % were found.
_MARGIN = 4.0
# Largest shift of a logit: labels with a threshold of 0 always count, with 1 never.
_FAR = 1e6

# Since Python 3.12, `cached_property` has no lock: all requests that wait would describe the set.
_DESCRIBING = Lock()

TRAINED_SET = "trained"
CANDIDATE_SET = "candidate_labels"
RESERVED_NAMES = frozenset({TRAINED_SET, CANDIDATE_SET})
MOST_RANKED = 5
RATING = "rating"
"""Category of labels that exclude each other, such as `general` and `explicit`."""

_OTHER_MODEL = {
    "positive": 0,
    "negative": 0,
    "separation": {"value": 0.0, "meaning": "unknown: learnt with another model or text"},
    "this_model": False,
}
_SUMMARY = ("name", "version", "origin", "read_only", "num_labels")
_LEFT_OUT_IF_EMPTY = ("category_counts", "num_learnt", "ranked", "languages")

Origin = Literal["model", "bundle", "folder", "store", "request"]


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labels as columns, in the order of the logits."""

    name: str
    version: str  # changes with the content; with `origin` `store`, a number that grows
    origin: Origin  # `model` has the trained labels, `request` candidate labels
    names: tuple[str, ...]
    thresholds: NDArray[np.float64]  # [L], 0..1; the fallback for labels without their own
    calibrated: NDArray[np.bool_]  # [L], whether the threshold is the label's own
    calibration: NDArray[np.float64] | None  # [2, L], scale and shift; None: logits as they are
    activation: card.Activation
    prompts: tuple[str | None, ...]  # texts that were encoded instead of the names
    own_embeddings: NDArray[np.bool_]  # [L], whether it came with an embedding, not a text
    source: Source
    digest: str | None = None  # of the definition; None for the trained labels
    own_calibration: card.Calibration | None = None  # of a set that has its own
    categories: Mapping[str, str] = field(default_factory=dict)  # of trained labels, by name
    learnt: LearntLabels | None = None  # from photos with this encoder; None if none has
    untaught: "LabelSet | None" = None  # the set before its labels learnt
    # Labels whose lessons are all of another encoder, or whose scores compete.
    unused_lessons: frozenset[str] = frozenset()
    shared: card.ByPurpose = field(default_factory=dict)  # the head's thresholds by purpose
    # Trained labels' own thresholds by purpose, [L], NaN if a label has none.
    measured: Mapping[Purpose, NDArray[np.float64]] = field(default_factory=dict)
    # Scores only rank: all thresholds are 0, and by default the `MOST_RANKED` best labels answer.
    ranked: bool = False
    dictionary: Dictionary = field(default_factory=Dictionary)
    resolved: Mapping[str, str] = field(default_factory=dict)  # candidates to labels they mean

    @property
    def words(self) -> Mapping[str, Words]:
        """The words of labels that have some, by name."""
        return self.dictionary.words

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of translations."""
        return self.dictionary.languages

    @property
    def num_labels(self) -> int:
        """The number of labels."""
        return len(self.names)

    @property
    def num_learnt(self) -> int:
        """The number of labels that have learnt from photos with this encoder."""
        return 0 if self.learnt is None else len(self.learnt.positions)

    @property
    def read_only(self) -> bool:
        """Whether clients cannot replace or delete the set."""
        return self.origin != "store"

    @property
    def own_thresholds(self) -> tuple[float | None, ...]:
        """The thresholds as they were defined; None for labels without their own."""
        defined = self.untaught or self
        pairs = zip(defined.thresholds.tolist(), defined.calibrated.tolist(), strict=True)
        return tuple(threshold if is_own else None for threshold, is_own in pairs)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Name -> index in the columns."""
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def all_positions(self) -> NDArray[np.intp]:
        """The positions of all labels, 0 to L - 1."""
        return np.arange(len(self.names))

    @cached_property
    def category_counts(self) -> dict[str, int]:
        """Category -> the number of its labels."""
        return {category: len(labels) for category, labels in self.by_category.items()}

    @cached_property
    def lessons(self) -> Lessons:
        """What labels have learnt, by name and kind."""
        learnt = self.learnt
        if learnt is None:
            return {}
        pairs = zip(learnt.positions.tolist(), learnt.taught, strict=True)
        return {
            self.names[position]: {kind: each.lesson for kind, each in some.items()}
            for position, some in pairs
        }

    @property
    def _each_taught(self) -> list[tuple[int, Taught]]:
        return [] if self.learnt is None else self.learnt.each

    @property
    def fitted(self) -> list[int]:
        """The positions of labels whose lessons give scale and shift, not the set's calibration."""
        return [position for position, each in self._each_taught if each.pair is not None]

    @property
    def embeds(self) -> bool:
        """Whether its logits need the photo's embedding."""
        return self.learnt is not None or self.source.untaught_logit != 0

    @property
    def pairs(self) -> NDArray[np.float64]:
        """Scales and shifts of all labels, [2, L]; 1 and 0 without a calibration."""
        if self.calibration is not None:
            return self.calibration
        return np.repeat([[1.0], [0.0]], len(self.names), axis=1)

    @property
    def queries(self) -> QueryArray | None:
        """Of the open head, [L, K]; None for trained labels and without texts."""
        return None if self.source.vectors is None else self.source.vectors.queries

    @property
    def keys(self) -> Keys | None:
        """Of the screened head, [L, ...]; None for candidates too."""
        return None if self.source.vectors is None else self.source.vectors.keys

    @property
    def content(self) -> bytes:
        """The set as JSON, as `GET /labels/NAME` answers: 90 bytes a label, 0.1 s for 50,000."""
        with _DESCRIBING:
            return self._content

    @cached_property
    def _content(self) -> bytes:
        return to_json(self.describe())

    def describe(self) -> dict[str, Any]:
        """Returns the set as JSON values; its labels are a generator, as of a prediction."""
        described = {key: getattr(self, key) for key in _SUMMARY}
        described |= {key: v for key in _LEFT_OUT_IF_EMPTY if (v := getattr(self, key))}
        calibration = self.own_calibration and self.own_calibration.model_dump()
        return {**described, "calibration": calibration, "labels": self._describe_labels()}

    def _describe_labels(self) -> Iterator[dict[str, Any]]:
        lessons: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name in self.unused_lessons:
            lessons[name]["examples"] = _OTHER_MODEL
        for position, each in self._each_taught:
            lessons[self.names[position]][each.lesson.kind] = each.described
        numbers = self.thresholds.tolist(), self.calibrated.tolist(), self.own_embeddings.tolist()
        rows = zip(self.names, self.prompts, *numbers, strict=True)
        for name, prompt, threshold, is_calibrated, has_own_embedding in rows:
            described = {
                "name": name,
                "prompt": prompt,
                "threshold": threshold,
                "calibrated": is_calibrated,
                "own_embedding": has_own_embedding,
            }
            if category := self.categories.get(name):
                described["category"] = category
            if words := self.words.get(name):
                described |= {key: value for key, value in words._asdict().items() if value}
            yield {**described, **lessons.get(name, {})}

    def find_members(
        self, groups: Mapping[str, Sequence[int]], wanted: Collection[str]
    ) -> NDArray[np.bool_]:
        """Returns which labels are in one of these groups, categories or parents, bool [L]."""
        are_members = np.zeros(len(self.names), np.bool_)
        for name in groups.keys() & wanted:
            are_members[groups[name]] = True
        return are_members

    @cached_property
    def by_category(self) -> dict[str, list[int]]:
        """Category -> the positions of its labels."""
        return _group((self.categories[n],) if n in self.categories else () for n in self.names)

    @cached_property
    def by_parent(self) -> dict[str, list[int]]:
        """Parent -> the positions of the labels below it, and of the label of its name."""
        below = (self.words[name].parents if name in self.words else () for name in self.names)
        groups = _group(below if self.words else ())
        for parent in groups.keys() & self.positions.keys():
            groups[parent].append(self.positions[parent])
        return groups

    @cached_property
    def ratings(self) -> NDArray[np.intp] | None:
        """Positions of ratings, of which answers have the best; None without, or of a softmax."""
        if not self.categories or self.activation == "softmax":
            return None
        ratings = self.by_category.get(RATING)
        return None if ratings is None else np.array(ratings)

    def use(self, purpose: Purpose) -> "LabelSet | None":
        """Returns the set with its thresholds for a purpose; None if they were not measured.

        An open label keeps its own threshold: for `recall` if it is below the open head's, for
        `precise` unless it is.
        """
        if purpose not in self._used:
            shared, measured = self.shared.get(purpose), self.measured.get(purpose)
            least = shared.threshold if shared else np.nan
            if measured is None:
                most = least if purpose == "recall" else np.inf
                lowest = least if purpose == "precise" else -np.inf
                usable = self.calibrated & (lowest <= self.thresholds) & (self.thresholds < most)
                measured = np.where(usable, self.thresholds, np.nan)
            known = ~np.isnan(measured)
            thresholds = np.where(known, measured, least)
            learnt = [(p, t.points[purpose]) for p, t in self._each_taught if purpose in t.points]
            for position, point in learnt:
                if self.untaught and not self.untaught.calibrated[position]:
                    thresholds[position], known[position] = point.threshold, point.is_own
            if np.isnan(thresholds).any() or not (shared or learnt):
                return None
            self._used[purpose] = replace(self, thresholds=thresholds, calibrated=known)
        return self._used[purpose]

    @cached_property
    def _used(self) -> dict[Purpose, "LabelSet"]:
        return {}

    def screen(
        self, threshold: Threshold | None, wanted: int, chosen: NDArray[np.intp]
    ) -> ScreenedQueries:
        """Returns the head for a question to a set with keys.

        It scores the labels of the `chosen` positions that reach the threshold, their own or one
        for all, those that have learnt from photos, and at least the `wanted` best, these included.
        Equal questions share it, and so share a run.
        """
        key = (threshold, wanted, b"" if chosen is self.all_positions else chosen.tobytes())
        if (known := self._screened.pop(key, None)) is not None:
            self._screened[key] = known
            return known
        assert self.queries is not None
        assert self.keys is not None
        count = len(self.names)
        scale, shift = self.pairs
        if threshold is not None:
            floors = self.thresholds if isinstance(threshold, str) else np.float64(threshold)
            with np.errstate(divide="ignore"):
                shift = shift - (np.log(floors) - np.log1p(-floors))
        others = np.ones(count, np.bool_)  # estimates are of texts alone
        if self.learnt is not None:
            others[self.learnt.positions] = False
        shift = shift + _MARGIN * (scale - scale[others].min(initial=np.inf))
        shift[~others] = _FAR
        shifts = np.full(count, -_FAR, np.float32)
        shifts[chosen] = shift[chosen].clip(-_FAR, _FAR)
        head = ScreenedQueries(self.queries, self.keys, scale.astype(np.float32), shifts, wanted)
        self._screened[key] = head
        if len(self._screened) > _MAX_SCREENED:
            self._screened.pop(next(iter(self._screened)), None)
        return head

    @cached_property
    def _screened(self) -> dict[tuple[Threshold | None, int, bytes], ScreenedQueries]:
        return {}  # least recently used first


def make_trained_set(
    labels: Sequence[card.Label],
    head: card.TrainedHead,
    *,
    version: str = "1",
    words: Mapping[str, Words] | None = None,
) -> LabelSet:
    """Returns the set of a bundle's trained labels."""
    names = tuple(label.name for label in labels)
    thresholds, calibrated = _fill([label.threshold for label in labels], head.threshold)
    measured = {}
    for purpose in get_args(Purpose):
        points = [label.by_purpose.get(purpose) for label in labels]
        measured[purpose] = np.array([point.threshold if point else np.nan for point in points])
    return LabelSet(
        name=TRAINED_SET,
        version=version,
        origin="model",
        names=names,
        thresholds=thresholds,
        calibrated=calibrated,
        calibration=_stack([label.calibration or head.calibration for label in labels]),
        activation=head.activation,
        prompts=(None,) * len(labels),
        own_embeddings=np.zeros(len(labels), np.bool_),
        source=Trained(),
        categories={label.name: label.category for label in labels if label.category},
        shared=head.by_purpose,
        measured=measured,
        dictionary=Dictionary(names, choose_words(words or {}, names)),
    )


def make_open_set(  # noqa: PLR0913 - version and origin are names
    definition: Definition,
    vectors: LabelVectors | None,
    head: card.OpenHead | None,
    trained_names: Collection[str] = (),
    *,
    version: str,
    origin: Origin,
) -> LabelSet:
    """Returns a set that requests share; `trained_names` are as `fold_name` returns them."""
    # The engine does not cache a writable array on a GPU: candidate labels are used once.
    for matrix in vectors.arrays.values() if vectors else ():
        matrix.flags.writeable = origin == "request"
    fallback = card.FALLBACK_THRESHOLD if head is None else head.threshold
    thresholds, calibrated = _fill(definition.thresholds, fallback)
    shared, names = definition.calibration, definition.names
    pairs = [shared] * len(names)
    if head is not None:
        pairs = [shared or head.find_calibration(name, trained_names) for name in names]
    calibration = _stack(pairs)
    # A threshold of one's own shows that answers by thresholds are wanted.
    ranked = bool(head and head.ranked and calibration is None and not calibrated.any())
    return LabelSet(
        name=definition.name,
        version=version,
        origin=origin,
        names=names,
        thresholds=np.zeros(len(names)) if ranked else thresholds,
        calibrated=calibrated,
        calibration=calibration,
        activation=head.activation if head and calibration is None else "sigmoid",
        prompts=definition.prompts,
        own_embeddings=np.isin(np.arange(len(names)), definition.given),
        source=Texts(vectors) if vectors else Untold(len(names)),
        digest=definition.digest,
        own_calibration=shared,
        shared=head.by_purpose if head else {},
        ranked=ranked,
        dictionary=Dictionary(names, definition.words),
    )


def teach(
    labels: LabelSet, lessons: Lessons, unused: Collection[str], whitening: Whitening | None
) -> LabelSet:
    """Returns the set with these lessons, by label and kind, instead of its own.

    It measures those that are new. Labels in `unused` have lessons that are not used. Raises
    `InvalidLabelSet` if a lesson is of another width.
    """
    start = replace(
        labels.untaught or labels,
        version=labels.version,
        dictionary=labels.dictionary,
        unused_lessons=frozenset(unused) & labels.positions.keys(),
    )
    learning = {labels.positions[name]: lessons[name] for name in labels.names if name in lessons}
    if whitening is None or not learning:
        return start
    learnt = teach_labels(learning, whitening, start.queries, labels.learnt)
    if learnt is None or len(learnt.positions) < len(learning):  # some are of other texts
        useless = {*learning} - {*(learnt.positions.tolist() if learnt else ())}
        others = start.unused_lessons | {labels.names[position] for position in useless}
        start = replace(start, unused_lessons=others)
    if learnt is None:
        return start
    pairs, thresholds, calibrated = start.pairs.copy(), start.thresholds, start.calibrated.copy()
    has_pairs = any(each.pair for _, each in learnt.each)
    if start.ranked and has_pairs:
        thresholds = np.full(len(thresholds), card.FALLBACK_THRESHOLD)
    thresholds = thresholds.copy()
    for position, each in learnt.each:
        if each.pair is not None:
            pairs[:, position] = each.pair
        if (point := each.points.get("calibrated")) and not start.calibrated[position]:
            thresholds[position], calibrated[position] = point.threshold, point.is_own
    return replace(
        start,
        calibration=pairs if has_pairs else start.calibration,
        thresholds=thresholds,
        calibrated=calibrated,
        ranked=start.ranked and not has_pairs,
        learnt=learnt,
        untaught=start,
    )


def _group(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """Returns the groups of labels, by name, as positions; `names` are each label's groups."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for position, some in enumerate(names):
        for name in some:
            groups[name].append(position)
    return dict(groups)


def _fill(
    thresholds: Sequence[float | None], fallback: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    filled = [fallback if value is None else value for value in thresholds]
    return np.array(filled, np.float64), np.array([value is not None for value in thresholds])


def _stack(calibrations: Sequence[card.Calibration | None]) -> NDArray[np.float64] | None:
    """Returns scales and shifts, float64 [2, L]; None if no label is calibrated."""
    if not any(calibrations):
        return None
    pairs = [(1.0, 0.0) if pair is None else (pair.scale, pair.shift) for pair in calibrations]
    return np.array(pairs, np.float64).T.copy()
