"""The catalogue: all label sets of a process. Any process may change those of the store."""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.bundle.card import Calibration
from service.errors import (
    InvalidLabelSet,
    LabelSetError,
    LabelSetNotFound,
    LabelSetReadOnly,
    NoOpenHead,
    StartError,
    StoreReadOnly,
    UnknownLabelSet,
    VersionNotReached,
)
from service.labels.definition import Definition, check_candidates, refuse_duplicates
from service.labels.encoding import LabelEncoders
from service.labels.label_set import CANDIDATE_SET, RESERVED_NAMES, LabelSet, Origin
from service.labels.store.store import LabelStore
from service.labels.stored_sets import StoredSets
from service.question import Question

_NAMES_LOGGED = 10

logger = logging.getLogger(__name__)


class FixedSet(NamedTuple):
    """A set of the bundle or of a folder, not yet encoded."""

    definition: Definition
    version: str
    origin: Origin


class Catalogue:
    """Label sets by name; use it from one event loop. Without an open head, `encoding` is None."""

    def __init__(  # noqa: PLR0913 - the last three are settings
        self,
        trained: LabelSet | None,
        fixed: Sequence[FixedSet],
        encoding: LabelEncoders | None,
        store: LabelStore | None,
        *,
        default_sets: tuple[str, ...],
        max_candidates: int,
        poll_seconds: float,
    ) -> None:
        """Loads nothing before `start`; of fixed sets of the same name, the last one counts.

        Of `default_sets`, those that are not the bundle's come first. Without any, a request that
        names none gets the trained labels and the bundle's sets, in this order; if there are
        neither, the first fixed set. The store is polled for other processes' writes every
        `poll_seconds`.
        """
        self._pending = {entry.definition.name: entry for entry in fixed}
        self._fixed: dict[str, LabelSet] = {} if trained is None else {trained.name: trained}
        self._names = frozenset([*self._fixed, *self._pending])
        # A folder's set of the same name replaces a bundle's set here too.
        shipped = [entry.definition.name for entry in fixed if entry.origin == "bundle"]
        of_users = {name for name, entry in self._pending.items() if entry.origin == "folder"}
        of_bundle = {*self._fixed, *shipped} - of_users
        self._default = (
            # Users' sets first: of a label in several, the first set's threshold counts.
            tuple(sorted(default_sets, key=of_bundle.__contains__))
            or (*self._fixed, *shipped)
            or (*self._pending,)[:1]
        )
        self.encoding = encoding
        self._is_default_given = bool(default_sets)
        self._max_candidates = max_candidates
        self._stored: StoredSets | None = None
        if encoding is not None and store is not None:
            self._stored = StoredSets(store, encoding, poll_seconds, self._names)

    @property
    def default_columns(self) -> list[str] | None:
        """The first default set, for requests of all scores; None if the settings name defaults."""
        return None if self._is_default_given else list(self._default[:1])

    @property
    def store_revision(self) -> int:
        """Revision of the store that is served; 0 without a store or before it was read."""
        return 0 if self._stored is None else max(0, self._stored.revision)

    @property
    def store_answers(self) -> bool:
        """Whether the last poll of the store succeeded; true without a store."""
        return self._stored is None or self._stored.answers

    @property
    def reencoding_progress(self) -> tuple[int, int] | None:
        """Sets done and in total while those of another bundle are encoded again; else None."""
        return None if self._stored is None else self._stored.reencoding_progress

    def list_sets(self) -> tuple[LabelSet, ...]:
        """Returns every set: the model's, the bundle's, the folder's, then the store's by name."""
        stored = {} if self._stored is None else self._stored.by_name
        shown = (labels for name, labels in sorted(stored.items()) if name not in self._fixed)
        return (*self._fixed.values(), *shown)

    def get(self, name: str) -> LabelSet | None:
        """Returns a set that this process has loaded; else None."""
        found = self._fixed.get(name)
        if found is None and self._stored is not None:
            found = self._stored.by_name.get(name)
        return found

    def find(self, name: str) -> LabelSet:
        """Returns a set; raises `LabelSetNotFound`, or `StoreUnavailable` if it may be stored."""
        found = self.get(name)
        if found is None:
            self._check_store()
            raise LabelSetNotFound(name, self._list_names())
        return found

    async def start(self) -> None:
        """Encodes the fixed sets, loads the store's, and starts polling; may raise `StartError`."""
        pending, self._pending = self._pending, {}  # frees the embeddings
        for name, entry in pending.items():
            self._fixed[name] = await self._encode_fixed(entry)
        if self._stored is not None:
            await self._stored.start()
        for name in self._default:
            # No StartError: a client that deletes the set could prevent the next start.
            if self.get(name) is None:
                known = ", ".join(self._list_names()[:_NAMES_LOGGED])
                logger.warning(
                    "the default label set %s is missing: requests must name one (%s)", name, known
                )

    async def stop(self) -> None:
        """Closes the store and the encoders; later calls that need them raise `Draining`."""
        if self._stored is not None:
            await self._stored.stop()
        if self.encoding is not None:
            self.encoding.close()

    async def pin(self, question: Question) -> tuple[LabelSet, ...]:
        """Returns the sets that a request asks for as they are now, candidates first.

        Raises `UnknownLabelSet`, a `LabelSetError`, or `StoreUnavailable` if a set or `min_version`
        is missing while the store does not answer.
        """
        names = tuple(dict.fromkeys(question.label_set or ()))
        if not names and not question.candidate_labels:
            names = self._default
        if question.min_version:  # every store has reached 0
            if self._stored is None:
                raise VersionNotReached(question.min_version, self.store_revision)
            await self._stored.reach(question.min_version, names)
        unknown = tuple(name for name in names if self.get(name) is None)
        if unknown or not (names or question.candidate_labels):
            self._check_store()
            raise UnknownLabelSet(unknown, self._list_names(), by_default=not question.label_set)
        sets = tuple(self.find(name) for name in names)
        if question.candidate_labels:
            return (await self._make_candidates(tuple(question.candidate_labels)), *sets)
        return sets

    async def register(
        self, definition: Definition, *, replace: bool = False, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Registers a set; when this returns, it is durable, and requests may name it.

        Arguments and errors as of `LabelStore.write`; returns the set, and whether its name is new.
        """
        stored = self._writable(definition.name)
        return await stored.write(definition, replace=replace, if_version=if_version)

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned it keep it."""
        try:
            await self._writable(name).delete(name, if_version)
        except LabelSetNotFound as error:
            known = self._list_names() if self._stored and self._stored.revision >= 0 else ()
            raise LabelSetNotFound(name, known) from error

    async def calibrate(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        calibration: Calibration | None = None,
        if_version: int | None = None,
    ) -> LabelSet:
        """Sets thresholds (0..1) of some labels of a registered set, and its calibration if given.

        A threshold of None is the open head's. Raises `LabelSetChanged` if the set is not in
        `if_version`, or is changed meanwhile; `UnknownLabel` if a label is not in it.
        """
        stored = self._writable(name)
        return await stored.calibrate(name, thresholds, calibration, if_version)

    async def refresh(self) -> None:
        """Loads the writes of other processes; raises `StoreUnavailable` if it cannot."""
        if self._stored is not None:
            await self._stored.refresh()

    def _list_names(self) -> list[str]:
        return [labels.name for labels in self.list_sets()]

    def _check_store(self) -> None:
        if self._stored is not None:
            self._stored.check_answers()

    def _writable(self, name: str) -> StoredSets:
        if self.encoding is None:
            raise NoOpenHead
        if name in self._names or name in RESERVED_NAMES:
            raise LabelSetReadOnly(name)
        if self._stored is None:
            raise StoreReadOnly("no label store is available: set label_store")
        return self._stored

    async def _encode_fixed(self, entry: FixedSet) -> LabelSet:
        definition, encoding = entry.definition, self.encoding
        try:
            if encoding is None:
                raise NoOpenHead
            if definition.name in RESERVED_NAMES:
                raise InvalidLabelSet(
                    f"The names {' and '.join(sorted(RESERVED_NAMES))} are reserved"
                )
            definition = encoding.check(definition)
            vectors = await encoding.project(await encoding.embed(definition))
        except LabelSetError as error:
            raise StartError(f"label set {definition.name}: {error.describe()}") from error
        return encoding.make_set(definition, vectors, entry.version, entry.origin)

    async def _make_candidates(self, names: tuple[str, ...]) -> LabelSet:
        if self.encoding is None:
            raise NoOpenHead
        check_candidates(names, self._max_candidates)
        nothing = (None,) * len(names)
        definition = Definition(CANDIDATE_SET, refuse_duplicates(names), nothing, nothing)
        self.encoding.check(definition)
        vectors = await self.encoding.encode_candidates(definition)
        return self.encoding.make_set(definition, vectors, definition.digest[:12], "request")
