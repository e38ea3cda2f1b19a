"""Stored sets: the label sets of the store, loaded, in this process.

In: a `LabelStore`, which any process may change. Out: snapshots by name, replaced by swapping one
reference, so that a request sees the old set or the new one. One thread talks to the store. While
the store is away, what is loaded stays as it is. Next: `catalogue.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from service.errors import (
    Draining,
    InvalidLabelSet,
    StartError,
    StoreError,
    StoreIncompatible,
    StoreUnavailable,
    VersionNotReached,
)
from service.labels.definition import check_embeddings
from service.labels.encoding import Encoding
from service.labels.label_set import LabelSet
from service.labels.store.order import Kept
from service.labels.store.rows import StoredSet
from service.labels.store.store import LabelStore, Mark, Written

# The largest set takes seconds to write; a server that is silent for longer hangs.
_PATIENCE_SECONDS = 30.0
_CLOSING_SECONDS = 1.0

_log = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class StoredSets:
    """Snapshots of the store's sets; every method belongs to one event loop."""

    def __init__(
        self, store: LabelStore, encoding: Encoding, poll_seconds: float, hidden: Collection[str]
    ) -> None:
        """Loads nothing before `start`.

        Args:
            store: where the sets are kept.
            encoding: turns their embeddings into queries.
            poll_seconds: how often the store is asked whether another process wrote.
            hidden: names of sets that came with us, which hide those of the store.
        """
        self._store = store
        self._encoding = encoding
        self._poll_seconds = poll_seconds
        self._hidden = frozenset(hidden)
        self._sets: Mapping[str, LabelSet] = MappingProxyType({})
        self._mark = Mark(-1, 0)
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._following: asyncio.Task[None] | None = None
        self._patience_seconds = _PATIENCE_SECONDS
        self._away: str | None = None  # why
        self._stopped = False

    @property
    def by_name(self) -> Mapping[str, LabelSet]:
        """The sets as they are now."""
        return self._sets

    @property
    def revision(self) -> int:
        """Version of the store that the sets are of; -1 before the first look."""
        return self._mark.revision

    @property
    def answers(self) -> bool:
        """Whether the store answered when it was last looked at."""
        return self._away is None

    def check_answers(self) -> None:
        """Does nothing if the store answered when it was last looked at.

        Raises:
            StoreUnavailable: it did not.
        """
        if self._away is not None:
            raise StoreUnavailable(self._away)

    async def start(self) -> None:
        """Loads the sets, if the store answers, and follows the store from then on.

        Raises:
            StartError: the store is of another version of the service.
        """
        try:
            await self._look(self.refresh)
        except StoreIncompatible as error:
            raise StartError(str(error)) from error
        self._following = asyncio.create_task(self._follow(), name="label store")

    async def stop(self) -> None:
        """Stops following the store and lets go of it."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._patience_seconds = _CLOSING_SECONDS
        with contextlib.suppress(StoreError):
            await self.call(self._store.close)
        self._stopped = True
        self._thread.shutdown(wait=False)

    async def call(
        self, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
    ) -> ResultT:
        """Runs a method of the store on the store's thread."""
        if self._stopped:
            raise Draining("the store is closed")
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._thread, lambda: work(*args, **options))
        try:
            while not (await asyncio.wait([done], timeout=self._patience_seconds))[0]:
                self._store.hang_up()
        finally:
            done.cancel()  # where nobody waits for it any more: if it has not begun, it need not
        return done.result()

    async def refresh(self) -> None:
        """Loads what other processes wrote.

        Raises:
            StoreUnavailable: the store does not answer; the sets stay as they are.
        """
        async with self._turn:
            mark, kept = await self.call(self._store.read_versions)
            loaded: dict[str, LabelSet] = {}
            for name, wanted in kept.items():
                known = self._sets.get(name)
                if not _is_kept(known, wanted):
                    known = await self._load(name)
                if known is not None:
                    loaded[name] = known
            self._tell_hidden(loaded)
            if self.revision < 0:
                await self._tell_others()
            self._sets, self._mark = MappingProxyType(loaded), mark

    async def reach(self, version: int, names: Sequence[str]) -> None:
        """Returns once the sets called `names` are at least of `version`.

        Raises:
            VersionNotReached: the store has not seen this version.
            StoreUnavailable: it may have, but does not answer.
        """
        if not self._has_reached(version, names):
            await self.refresh()
        if not self._has_reached(version, names):
            raise VersionNotReached(f"version {version}, the store is at {self.revision}")

    async def find_current(self, name: str, kept: Kept) -> LabelSet | None:
        """Returns the set that the store has as `kept`, or in a later version; None if gone."""
        if not _is_kept(self._sets.get(name), kept):
            await self.refresh()
        return self._sets.get(name)

    async def write(
        self, make: Callable[[int], LabelSet], work: Callable[[], Written]
    ) -> tuple[LabelSet | None, Written]:
        """Writes a set to the store, and shows it once it is durable.

        Args:
            make: makes the snapshot of the version that the store gave.
            work: writes; runs on the store's thread.

        Returns:
            The snapshot, None where nothing had to be written, and what the store did.
        """
        async with self._turn:
            written = await self.call(work)
            if not written.changed:
                return None, written
            made = make(written.version)
            self._show({**self._sets, made.name: made}, written)
            return made, written

    async def delete(self, name: str, if_version: int | None) -> None:
        """Deletes a set from the store; who holds its snapshot keeps it.

        Raises:
            LabelSetError: there is no such set, or it is in another version.
            StoreError: it could not be deleted.
        """
        async with self._turn:
            written = await self.call(self._store.delete, name, if_version=if_version)
            self._show({n: s for n, s in self._sets.items() if n != name}, written)

    def _show(self, sets: dict[str, LabelSet], written: Written) -> None:
        self._sets = MappingProxyType(sets)
        if written.previous == self.revision:  # else somebody else wrote too: look again
            self._mark = self._mark._replace(revision=written.version)

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        if self.revision >= version:
            return True
        # A set that is not here yet may be one that another process has written since.
        sets = [self._sets.get(name) for name in names if name not in self._hidden]
        return bool(sets) and all(known and int(known.version) >= version for known in sets)

    async def _load(self, name: str) -> LabelSet | None:
        try:
            stored: StoredSet | None = await self.call(self._store.read, name)
            if stored is None:
                return None  # deleted since; the next look at the store tells
            check_embeddings(stored.embeddings, self._encoding.head.embedding_space.width)
            queries = await self._encoding.project(stored.embeddings)
        except InvalidLabelSet as error:
            _log.error("label set %s in the store cannot be used: %s", name, error.reason)
            return None
        version = str(stored.version)
        return self._encoding.make_set(stored.definition, queries, version, "store")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            with contextlib.suppress(StoreIncompatible):  # told, and whoever mends it is served
                await self._look(self._poll)

    async def _poll(self) -> None:
        if await self.call(self._store.read_mark) != self._mark:
            await self.refresh()

    async def _look(self, look: Callable[[], Awaitable[None]]) -> None:
        """Looks at the store; that it is away is told once, and once that it is back."""
        try:
            await look()
        except StoreError as error:
            if self._away is None:
                _log.warning("the label store is away: %s", error)
            self._away = str(error)
            if isinstance(error, StoreIncompatible):
                raise
        except Exception:
            _log.exception("looking at the label store failed")
        else:
            if self._away is not None:
                _log.warning("the label store is back")
            self._away = None

    def _tell_hidden(self, loaded: Mapping[str, LabelSet]) -> None:
        for name in sorted((loaded.keys() & self._hidden) - self._sets.keys()):
            _log.warning(
                "label set %s in the store is hidden by one of the same name that is not stored",
                name,
            )

    async def _tell_others(self) -> None:
        count = await self.call(self._store.count_others)
        if count:
            _log.warning(
                "%d label set(s) in the store are of another embedding space than the bundle's, "
                "which cannot use them: register them again, or serve the bundle they are of",
                count,
            )


def _is_kept(known: LabelSet | None, kept: Kept) -> bool:
    """Tells whether a set is the one that the store has."""
    version, digest = kept
    return known is not None and (known.version, known.digest) == (str(version), digest)
