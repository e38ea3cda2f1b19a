"""The catalogue: every label set of a process, always whole, always answering.

In: sets of the model, the bundle and a folder, which never change, and those of the store, which
any process may change. Out: snapshots for requests, pinned from their start to their end. Next:
`selection.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.errors import (
    LabelSetNotFound,
    LabelSetReadOnly,
    NoOpenHead,
    StoreUnavailable,
    UnknownLabelSet,
    VersionNotReached,
)
from service.labels.definition import Definition, check_candidates, refuse_duplicates
from service.labels.encoding import Encoding
from service.labels.fixed_sets import FixedSet, encode_fixed_set
from service.labels.label_set import CANDIDATE_SET, RESERVED_NAMES, LabelSet
from service.labels.question import Question
from service.labels.registration import Registration
from service.labels.store.order import Order
from service.labels.store.store import LabelStore
from service.labels.stored_sets import StoredSets

_NAMES_SHOWN = 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogueRules:
    """What clients may ask for.

    Attributes:
        default_sets: sets of a request that names none; without any it is the trained labels,
            else the first fixed set.
        labels_per_set: most labels in a registered set.
        candidates: most candidate labels in a request.
        poll_seconds: how often the store is asked whether another process wrote.
    """

    default_sets: tuple[str, ...]
    labels_per_set: int
    candidates: int
    poll_seconds: float


class Catalogue:
    """Label sets by name; every method belongs to one event loop."""

    def __init__(
        self,
        trained: LabelSet | None,
        fixed: Sequence[FixedSet],
        encoding: Encoding | None,
        store: LabelStore | None,
        rules: CatalogueRules,
    ) -> None:
        """Loads nothing before `start`; `open_catalogue` is what to call.

        Args:
            trained: the trained labels, where there is a trained head.
            fixed: sets of the bundle and of the folder; a later one takes the name of an
                earlier one.
            encoding: encoders for labels, where there is an open head.
            store: where clients' sets are kept.
            rules: what clients may ask for.
        """
        self._pending = {entry.definition.name: entry for entry in fixed}
        self._fixed: dict[str, LabelSet] = {} if trained is None else {trained.name: trained}
        self._names = frozenset([*self._fixed, *self._pending])
        self._default = rules.default_sets or (*self._fixed, *self._pending)[:1]
        self._encoding = encoding
        self._rules = rules
        self._stored: StoredSets | None = None
        self._registration: Registration | None = None
        if encoding is not None and store is not None:
            stored = StoredSets(store, encoding, rules.poll_seconds, self._names)
            self._stored = stored
            self._registration = Registration(encoding, store, stored, rules.labels_per_set)

    @property
    def encoding(self) -> Encoding | None:
        """The encoders for labels; None where there is no open head."""
        return self._encoding

    @property
    def store_revision(self) -> int:
        """Version of the store that is served; 0 where there is no store or it was never read."""
        return 0 if self._stored is None else max(0, self._stored.revision)

    @property
    def store_answers(self) -> bool:
        """Whether the store answered last; true where there is none to ask."""
        return self._stored is None or self._stored.answers

    def list_sets(self) -> tuple[LabelSet, ...]:
        """Returns every set: the model's, the bundle's, the folder's, then the store's by name."""
        if self._stored is None:
            return tuple(self._fixed.values())
        stored = sorted(self._stored.by_name.items())
        return (*self._fixed.values(), *(s for name, s in stored if name not in self._fixed))

    def get(self, name: str) -> LabelSet | None:
        """Returns a set as this process has it; None where it has none of that name."""
        found = self._fixed.get(name)
        if found is None and self._stored is not None:
            found = self._stored.by_name.get(name)
        return found

    def find(self, name: str) -> LabelSet:
        """Returns a set.

        Raises:
            LabelSetNotFound: there is none of that name.
            StoreUnavailable: none is here, and the store, which may have one, does not answer.
        """
        found = self.get(name)
        if found is None:
            self._check_store()
            raise LabelSetNotFound(name)
        return found

    async def start(self) -> None:
        """Encodes the fixed sets, loads the store's, and follows the store from then on.

        Raises:
            StartError: a fixed set does not fit the bundle, or the store not this service.
        """
        pending, self._pending = self._pending, {}  # encoded, their embeddings are of no use
        for name, entry in pending.items():
            self._fixed[name] = await encode_fixed_set(entry, self._encoding)
        if self._stored is not None:
            await self._stored.start()
        for name in self._default:
            # No reason to stop: who may delete a set could keep the service from starting again.
            if self.get(name) is None:
                known = ", ".join(each.name for each in self.list_sets()[:_NAMES_SHOWN])
                _log.warning(
                    "the default label set %s is not there yet: requests must name one (%s)",
                    name,
                    known,
                )

    async def stop(self) -> None:
        """Stops following the store and lets go of it."""
        if self._stored is not None:
            await self._stored.stop()
        if self._encoding is not None:
            self._encoding.close()

    async def pin(self, question: Question) -> tuple[LabelSet, ...]:
        """Returns the sets that a request asks for, candidates first, as they are now.

        Raises:
            UnknownLabelSet: there is no set of a name that the question or the default gives.
            StoreUnavailable: one is not here, or not in `min_version`, and the store, which may
                have it, does not answer.
            VersionNotReached: the store has not seen `min_version`.
            InvalidLabelSet: the candidate labels are too many, or one stands twice.
            NoOpenHead: candidate labels need an open head.
            TextNotEncodable: candidate labels need a text encoder.
        """
        names = tuple(dict.fromkeys(question.label_set or ()))
        if not names and not question.candidate_labels:
            names = self._default or ("",)
        if question.min_version:  # every service is at 0, with a store or without
            await self._reach(question.min_version, names)
        unknown = tuple(name for name in names if self.get(name) is None)
        if unknown:
            self._check_store()
            raise UnknownLabelSet(unknown, by_default=not question.label_set)
        sets = tuple(self.find(name) for name in names)
        if question.candidate_labels:
            return (await self._make_candidates(tuple(question.candidate_labels)), *sets)
        return sets

    async def register(self, definition: Definition) -> tuple[LabelSet, bool]:
        """Registers a set; when this returns it is durable, and requests may name it.

        Returns:
            The set, and whether it is new: the same set is registered once.

        Raises:
            LabelSetError: the set cannot be registered.
            StoreError: it could not be kept.
        """
        return await self._writer_of(definition.name).write(Order(definition, replace=False))

    async def replace(
        self, definition: Definition, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Registers a set, or replaces the one of its name.

        Args:
            definition: the set.
            if_version: replace only this version; `order.ABSENT` replaces nothing,
                `order.PRESENT` replaces any.

        Returns:
            The set, and whether there was none of its name.

        Raises:
            LabelSetError: the set cannot be registered, or is in another version.
            StoreError: it could not be kept.
        """
        order = Order(definition, replace=True, if_version=if_version)
        return await self._writer_of(definition.name).write(order)

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned it are still answered from it.

        Raises:
            LabelSetError: there is no such set, or not to be deleted, or in another version.
            StoreError: it could not be deleted.
        """
        await self._writer_of(name).delete(name, if_version)

    async def set_thresholds(
        self, name: str, thresholds: Mapping[str, float], if_version: int | None = None
    ) -> LabelSet:
        """Gives labels of a registered set thresholds of their own; the others keep theirs.

        Args:
            name: the set.
            thresholds: label -> score, 0..1.
            if_version: change only this version, the one that the thresholds are for.

        Raises:
            LabelSetError: there is no such set, or it is not to be changed, or in another version.
            StoreError: it could not be kept.
        """
        return await self._writer_of(name).set_thresholds(name, thresholds, if_version)

    async def refresh(self) -> None:
        """Loads what other processes wrote to the store, where there is one.

        Raises:
            StoreUnavailable: the store does not answer; the sets stay as they are.
        """
        if self._stored is not None:
            await self._stored.refresh()

    def _check_store(self) -> None:
        """Does nothing where a set that is not here is nowhere.

        Raises:
            StoreUnavailable: the store did not answer, and may have it.
        """
        if self._stored is not None:
            self._stored.check_answers()

    def _writer_of(self, name: str) -> Registration:
        """Returns what writes the set called `name`."""
        if self._encoding is None:
            raise NoOpenHead("the bundle has no open head")
        if name in self._names or name in RESERVED_NAMES:
            raise LabelSetReadOnly(name)
        if self._registration is None:
            raise StoreUnavailable("no label store is available: set label_store")
        return self._registration

    async def _reach(self, version: int, names: Sequence[str]) -> None:
        if self._stored is None:
            raise VersionNotReached(f"version {version}, and there is no store")
        await self._stored.reach(version, names)

    async def _make_candidates(self, names: tuple[str, ...]) -> LabelSet:
        if self._encoding is None:
            raise NoOpenHead("the bundle has no open head")
        check_candidates(names, self._rules.candidates)
        nothing = (None,) * len(names)
        definition = Definition(CANDIDATE_SET, refuse_duplicates(names), nothing, nothing)
        self._encoding.check(definition)
        queries = await self._encoding.encode_candidates(definition)
        version = definition.digest[:12]
        return self._encoding.make_set(definition, queries, version, "request")
