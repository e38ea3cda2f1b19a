"""The catalogue: every label set of a process, always whole, always answering.

In: sets of the model, the bundle and a folder, which never change, and those of the store, which
any process may change. Out: snapshots for requests. A set is replaced by swapping one reference,
so a request sees the old set or the new one. A store that is away leaves what is loaded as it
is. Next: `selection.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from service.errors import (
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetError,
    LabelSetExists,
    LabelSetNotFound,
    LabelSetReadOnly,
    NoOpenHead,
    StartError,
    StoreError,
    StoreUnavailable,
    UnknownLabelSet,
    VersionNotReached,
)
from service.labels.definition import (
    Definition,
    Embeddings,
    check_embeddings,
    refuse_duplicates,
)
from service.labels.encoding import Encoding
from service.labels.label_set import (
    CANDIDATE_SET,
    RESERVED_NAMES,
    LabelSet,
    Origin,
    QueryArray,
    make_open_set,
)
from service.labels.store import LabelStore, StoredSet, Written
from service.selection import Query

_log = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


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


@dataclass(frozen=True)
class FixedSet:
    """A set that comes with the bundle or from a folder and never changes."""

    definition: Definition
    version: str
    origin: Origin


@dataclass(frozen=True, eq=False)
class _Order:
    """A set to write, over none or over any of its name, or only over one version."""

    definition: Definition
    replace: bool
    if_version: int | None = None


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
        self._default = rules.default_sets or (*self._fixed, *self._pending)[:1]
        self._stored: dict[str, LabelSet] = {}
        self._revision = -1
        self._encoding = encoding
        self._store = store
        self._rules = rules
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._following: asyncio.Task[None] | None = None
        self._store_away = False

    @property
    def encoding(self) -> Encoding | None:
        """The encoders for labels; None where there is no open head."""
        return self._encoding

    def list_sets(self) -> tuple[LabelSet, ...]:
        """Returns every set: the model's, the bundle's, the folder's, then the store's by name."""
        stored = sorted(self._stored.items())
        hidden = self._fixed.keys()
        return (*self._fixed.values(), *(s for name, s in stored if name not in hidden))

    def find(self, name: str) -> LabelSet:
        """Returns a set.

        Raises:
            LabelSetNotFound: there is none of that name.
        """
        found = self._fixed.get(name) or self._stored.get(name)
        if found is None:
            raise LabelSetNotFound(name)
        return found

    async def start(self) -> None:
        """Encodes the fixed sets, loads the store's, and follows the store from then on.

        Raises:
            StartError: a fixed set does not fit the bundle.
        """
        for name, entry in self._pending.items():
            try:
                self._fixed[name] = await self._make_fixed(entry)
            except LabelSetError as error:
                reason = error.reason if isinstance(error, InvalidLabelSet) else type(error).__doc__
                raise StartError(f"label set {name}: {reason}") from error
        if self._store is not None:
            await self._look(self.refresh)
            self._following = asyncio.create_task(self._follow(), name="label store")

    def check_default(self) -> None:
        """Makes sure that there is an answer to a request that names no set.

        Raises:
            StartError: there is no such set. Where the store is away it may yet be there.
        """
        unknown = [n for n in self._default if n not in self._fixed and n not in self._stored]
        if unknown and not self._store_away:
            raise StartError(f"default label set {unknown[0]}: there is no such set")

    async def stop(self) -> None:
        """Stops following the store and lets go of it."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._store is not None:
            with contextlib.suppress(StoreError):
                await self._call(self._store.close)
        self._thread.shutdown(wait=False)
        if self._encoding is not None:
            self._encoding.close()

    async def pin(self, query: Query) -> tuple[LabelSet, ...]:
        """Returns the sets that a request asks for, candidates first, as they are now.

        Raises:
            UnknownLabelSet: there is no set of a name that the query gives.
            VersionNotReached: the store has not seen `min_version`.
            StoreUnavailable: so may be, but the store does not answer.
            InvalidLabelSet: the candidate labels are too many, or one stands twice.
            NoOpenHead: candidate labels need an open head.
            TextNotEncodable: candidate labels need a text encoder.
        """
        names = tuple(dict.fromkeys(query.label_set))
        if not names and not query.candidate_labels:
            names = self._default or ("",)
        if query.min_version is not None:
            await self._reach(query.min_version, names)
        unknown = tuple(n for n in names if n not in self._fixed and n not in self._stored)
        if unknown:
            raise UnknownLabelSet(unknown)
        sets = tuple(self.find(name) for name in names)
        if query.candidate_labels:
            return (await self._make_candidates(query.candidate_labels), *sets)
        return sets

    async def register(self, definition: Definition) -> tuple[LabelSet, bool]:
        """Registers a set; when this returns it is durable, and requests may name it.

        Returns:
            The set, and whether it is new: the same set is registered once.

        Raises:
            LabelSetError: the set cannot be registered.
            StoreError: it could not be kept.
        """
        return await self._write(_Order(definition, replace=False))

    async def replace(
        self, definition: Definition, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Registers a set, or replaces the one of its name.

        Args:
            definition: the set.
            if_version: replace only this version.

        Returns:
            The set, and whether there was none of its name.

        Raises:
            LabelSetError: the set cannot be registered, or is in another version.
            StoreError: it could not be kept.
        """
        return await self._write(_Order(definition, replace=True, if_version=if_version))

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned it are still answered from it.

        Raises:
            LabelSetError: there is no such set, or not to be deleted, or in another version.
            StoreError: it could not be deleted.
        """
        _, store = self._open_parts(name)
        async with self._turn:
            written = await self._call(store.delete, name, if_version=if_version)
            self._apply({n: s for n, s in self._stored.items() if n != name}, written)

    async def set_thresholds(self, name: str, thresholds: Mapping[str, float]) -> LabelSet:
        """Gives labels of a registered set thresholds of their own; the others keep theirs.

        Raises:
            LabelSetError: there is no such set, or it is not to be changed.
            StoreError: it could not be kept.
        """
        encoding, store = self._open_parts(name)
        stored = await self._call(store.read, name)
        if stored is None:
            raise LabelSetNotFound(name)
        old = stored.definition
        new = tuple(
            thresholds.get(label, own) for label, own in zip(old.names, old.thresholds, strict=True)
        )
        order = _Order(replace(old, thresholds=new), replace=True, if_version=stored.version)
        queries = await encoding.project(stored.embeddings)
        labels, _ = await self._commit(store, order, stored.embeddings, queries)
        return labels

    async def refresh(self) -> None:
        """Loads what other processes wrote to the store.

        Raises:
            StoreUnavailable: the store does not answer; the sets stay as they are.
        """
        if self._store is None:
            raise StoreUnavailable("there is no store")
        async with self._turn:
            revision, versions = await self._call(self._store.read_versions)
            loaded: dict[str, LabelSet] = {}
            for name, version in versions.items():
                known = self._stored.get(name)
                if known is None or known.version != str(version):
                    known = await self._load(self._store, name)
                if known is not None:
                    loaded[name] = known
            self._tell_hidden(loaded)
            self._stored, self._revision = loaded, revision

    async def _write(self, order: _Order) -> tuple[LabelSet, bool]:
        definition = order.definition
        encoding, store = self._open_parts(definition.name)
        if len(definition.names) > self._rules.labels_per_set:
            raise InvalidLabelSet(f"A label set takes at most {self._rules.labels_per_set} labels")
        encoding.check(definition)
        # Encoding may take long, so what the store would refuse is refused before.
        found = await self._call(store.find, definition.name)
        if order.if_version is not None and (found is None or found[0] != order.if_version):
            raise LabelSetChanged(definition.name)
        if found is not None and found[1] == definition.digest():
            return await self._current(definition.name, found[0]), False
        if found is not None and not order.replace:
            raise LabelSetExists(definition.name)
        embeddings = await encoding.embed(definition)
        queries = await encoding.project(embeddings)
        return await self._commit(store, order, embeddings, queries)

    async def _commit(
        self, store: LabelStore, order: _Order, embeddings: Embeddings, queries: QueryArray
    ) -> tuple[LabelSet, bool]:
        definition = order.definition
        async with self._turn:
            written = await self._call(
                store.write,
                definition,
                embeddings,
                replace=order.replace,
                if_version=order.if_version,
            )
            if written.changed:
                made = self._make(definition, queries, str(written.version), "store")
                self._apply({**self._stored, definition.name: made}, written)
                return made, written.created
        return await self._current(definition.name, written.version), False

    def _apply(self, stored: dict[str, LabelSet], written: Written) -> None:
        self._stored = stored
        if written.previous == self._revision:  # else somebody else wrote too: look again
            self._revision = written.version

    async def _current(self, name: str, version: int) -> LabelSet:
        known = self._stored.get(name)
        if known is None or known.version != str(version):
            await self.refresh()
        return self.find(name)

    def _open_parts(self, name: str) -> tuple[Encoding, LabelStore]:
        if self._encoding is None:
            raise NoOpenHead("the bundle has no open head")
        if name in self._fixed or name in self._pending or name in RESERVED_NAMES:
            raise LabelSetReadOnly(name)
        if self._store is None:
            raise StoreUnavailable("there is no store")
        return self._encoding, self._store

    async def _reach(self, version: int, names: Sequence[str]) -> None:
        if self._has_reached(version, names):
            return
        if self._store is not None:
            await self.refresh()
        if not self._has_reached(version, names):
            raise VersionNotReached(f"version {version}, the store is at {self._revision}")

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        stored = [self._stored[name] for name in names if name in self._stored]
        seen = bool(stored) and all(int(labels.version) >= version for labels in stored)
        return seen or self._revision >= version

    async def _load(self, store: LabelStore, name: str) -> LabelSet | None:
        try:
            stored: StoredSet | None = await self._call(store.read, name)
            if stored is None:
                return None  # deleted since; the next look at the store tells
            encoding = self._encoding
            assert encoding is not None
            check_embeddings(stored.embeddings, encoding.head.embedding_space.width)
        except InvalidLabelSet as error:
            _log.error("label set %s in the store cannot be used: %s", name, error.reason)
            return None
        queries = await encoding.project(stored.embeddings)
        return self._make(stored.definition, queries, str(stored.version), "store")

    async def _make_fixed(self, entry: FixedSet) -> LabelSet:
        encoding = self._encoding
        if encoding is None:
            raise NoOpenHead("the bundle has no open head")
        if entry.definition.name in RESERVED_NAMES:
            raise InvalidLabelSet("The name is reserved")
        encoding.check(entry.definition)
        queries = await encoding.project(await encoding.embed(entry.definition))
        return self._make(entry.definition, queries, entry.version, entry.origin)

    async def _make_candidates(self, names: tuple[str, ...]) -> LabelSet:
        if self._encoding is None:
            raise NoOpenHead("the bundle has no open head")
        if len(names) > self._rules.candidates:
            raise InvalidLabelSet(
                f"A request takes at most {self._rules.candidates} candidate labels"
            )
        nothing = (None,) * len(names)
        definition = Definition(CANDIDATE_SET, refuse_duplicates(names), nothing, nothing)
        self._encoding.check(definition)
        queries = await self._encoding.encode_candidates(definition)
        return self._make(definition, queries, definition.digest()[:12], "request")

    def _make(
        self, definition: Definition, queries: QueryArray, version: str, origin: Origin
    ) -> LabelSet:
        assert self._encoding is not None
        return make_open_set(
            definition,
            queries,
            version=version,
            origin=origin,
            fallback=self._encoding.head.threshold,
        )

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._rules.poll_seconds)
            await self._look(self._poll)

    async def _poll(self) -> None:
        assert self._store is not None
        if await self._call(self._store.read_revision) != self._revision:
            await self.refresh()

    async def _look(self, look: Callable[[], Awaitable[None]]) -> None:
        """Looks at the store; that it is away is told once, and once that it is back."""
        try:
            await look()
        except StoreError as error:
            if not self._store_away:
                _log.warning("the label store is away: %s", error.__cause__ or error)
            self._store_away = True
        except StartError:
            raise
        except Exception:
            _log.exception("looking at the label store failed")
        else:
            if self._store_away:
                _log.warning("the label store is back")
            self._store_away = False

    def _tell_hidden(self, loaded: dict[str, LabelSet]) -> None:
        for name in loaded.keys() & self._fixed.keys() - self._stored.keys():
            _log.warning("label set %s in the store is hidden by one that came with us", name)

    async def _call(
        self, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
    ) -> ResultT:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **options))
