"""The label sets of the store in this process: loaded, written, and followed as others write.

Readers take the mapping `by_name`, which is replaced as a whole, never changed. One thread calls
the store. While the store is unavailable, the loaded sets are served.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replace_fields
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from service.bundle.card import Calibration
from service.engine.heads import Embeddings, LabelVectors
from service.errors import (
    Draining,
    InvalidLabelSet,
    LabelSetNotFound,
    ServiceError,
    StartError,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
    UnknownLabel,
    VersionNotReached,
)
from service.labels.definition import Definition, check_embeddings
from service.labels.encoding import LabelEncoders
from service.labels.label_set import LabelSet
from service.labels.store.store import (
    LabelStore,
    SetVersion,
    StoreState,
    WriteResult,
    check_version,
)

# The largest set takes seconds to write, so a call that takes longer hangs.
_TIMEOUT_SECONDS = 30.0
_CLOSE_TIMEOUT_SECONDS = 1.0

logger = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class StoredSets:
    """Snapshots of the store's sets; use it from one event loop."""

    def __init__(
        self,
        store: LabelStore,
        encoding: LabelEncoders,
        poll_seconds: float,
        hidden: Collection[str],
    ) -> None:
        """Loads nothing before `start`; `hidden` are names of sets outside the store."""
        self._store = store
        self._encoding = encoding
        self._poll_seconds = poll_seconds
        self._hidden = frozenset(hidden)
        self.by_name: Mapping[str, LabelSet] = MappingProxyType({})
        self._mark = StoreState(-1, 0)
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._following: asyncio.Task[None] | None = None
        self._timeout_seconds = _TIMEOUT_SECONDS
        self._failure: str | None = None
        self._stopped = False
        self.reencoding_progress: tuple[int, int] | None = None
        """Sets done and in total while those of another space are encoded again; else None."""

    @property
    def revision(self) -> int:
        """Revision of the store that is loaded; -1 before it was first read."""
        return self._mark.revision

    @property
    def answers(self) -> bool:
        """Whether the last poll of the store succeeded."""
        return self._failure is None

    def check_answers(self) -> None:
        """Raises `StoreUnavailable` if the last poll of the store failed."""
        if self._failure is not None:
            raise StoreUnavailable(self._failure)

    async def start(self) -> None:
        """Loads the sets, if the store answers, and starts polling.

        Raises `StartError` if the store has another schema version.
        """
        try:
            await self._watch(self.refresh)
        except StoreIncompatible as error:
            raise StartError(str(error)) from error
        self._following = asyncio.create_task(self._follow(), name="label store")

    async def stop(self) -> None:
        """Stops polling and closes the store; other calls raise `Draining` from now on."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._timeout_seconds = _CLOSE_TIMEOUT_SECONDS
        self._stopped = True  # a call after `close` would open a connection that stays open
        with contextlib.suppress(StoreError):
            await self._run(self._store.close)
        self._thread.shutdown(wait=False)

    async def refresh(self) -> None:
        """Loads the writes of other processes; raises `StoreUnavailable` if it cannot."""
        async with self._changing:
            if self.revision < 0:
                await self._reencode_others()
            mark, versions = await self._call(self._store.read_versions)
            loaded: dict[str, LabelSet] = {}
            for name, stored in versions.items():
                known = self.by_name.get(name)
                if not _is_current(known, stored):
                    known = await self._load(name)
                if known is not None:
                    loaded[name] = known
            for name in sorted((loaded.keys() & self._hidden) - self.by_name.keys()):
                logger.warning("label set %s of the store is hidden by a read-only one", name)
            self.by_name, self._mark = MappingProxyType(loaded), mark

    async def reach(self, version: int, names: Sequence[str]) -> None:
        """Loads the store's writes unless the sets `names` are at `version` or later.

        Raises `VersionNotReached` if they still are not, or `StoreUnavailable` if it cannot load.
        """
        if not self._has_reached(version, names):
            await self.refresh()
        if not self._has_reached(version, names):
            raise VersionNotReached(version, max(0, self.revision))

    async def write(
        self, definition: Definition, *, replace: bool, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Encodes a set and writes it as `LabelStore.write` does; then it is in `by_name`.

        Returns the set, and whether its name is new.
        """
        definition = self._encoding.check(definition)
        # Before encoding, which may take long.
        same = await self._call(
            self._store.check, definition, replace=replace, if_version=if_version
        )
        if same is not None:
            return await self._find_current(definition, same), False
        embeddings = await self._encoding.embed(definition)
        vectors = await self._encoding.project(embeddings)
        return await self._commit(
            definition, embeddings, vectors, replace=replace, if_version=if_version
        )

    async def calibrate(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        calibration: Calibration | None,
        if_version: int | None,
    ) -> LabelSet:
        """Writes thresholds (0..1) for some labels of a set, and its calibration; None keeps it."""
        stored = await self._call(self._store.read, name)
        if stored is None:
            raise LabelSetNotFound(name)
        old = stored.definition
        found = SetVersion(stored.version, old.digest)
        check_version(name, found, if_version)
        names = frozenset(old.names)
        if unknown := tuple(label for label in thresholds if label not in names):
            raise UnknownLabel(unknown, [name], old.names)
        pairs = zip(old.names, old.thresholds, strict=True)
        new = tuple(thresholds.get(label, own) for label, own in pairs)
        known = self.by_name.get(name)
        if known is not None and known.queries is not None and _is_current(known, found):
            vectors = LabelVectors(known.queries, known.keys)  # the embeddings are the same
        else:
            vectors = await self._encoding.project(stored.embeddings)
        definition = replace_fields(old, thresholds=new, calibration=calibration or old.calibration)
        labels, _ = await self._commit(
            definition, stored.embeddings, vectors, replace=True, if_version=stored.version
        )
        return labels

    async def delete(self, name: str, if_version: int | None) -> None:
        """Deletes a set; requests that have pinned its snapshot keep it."""
        async with self._changing:
            written = await self._call(self._store.delete, name, if_version)
            self._publish({n: s for n, s in self.by_name.items() if n != name}, written)

    async def _commit(
        self,
        definition: Definition,
        embeddings: Embeddings,
        vectors: LabelVectors,
        *,
        replace: bool,
        if_version: int | None,
    ) -> tuple[LabelSet, bool]:
        async with self._changing:
            written = await self._call(
                self._store.write, definition, embeddings, replace=replace, if_version=if_version
            )
            if written.version > written.previous:
                version = str(written.version)
                labels = self._encoding.make_set(definition, vectors, version, "store")
                self._publish({**self.by_name, labels.name: labels}, written)
                return labels, written.created
        return await self._find_current(definition, written.version), False

    async def _find_current(self, definition: Definition, version: int) -> LabelSet:
        stored = SetVersion(version, definition.digest)
        if not _is_current(self.by_name.get(definition.name), stored):
            await self.refresh()
        found = self.by_name.get(definition.name)
        if found is None:  # deleted meanwhile
            raise LabelSetNotFound(definition.name)
        return found

    def _publish(self, sets: dict[str, LabelSet], written: WriteResult) -> None:
        self.by_name = MappingProxyType(sets)
        if written.previous == self.revision:  # else another process wrote too: poll again
            self._mark = self._mark._replace(revision=written.version)

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        if self.revision >= version:
            return True
        # A missing set may be one that another process has just written.
        sets = [self.by_name.get(name) for name in names if name not in self._hidden]
        return bool(sets) and all(known and int(known.version) >= version for known in sets)

    async def _load(self, name: str) -> LabelSet | None:
        try:
            stored = await self._call(self._store.read, name)
            if stored is None:
                return None  # deleted meanwhile; the next poll differs
            check_embeddings(stored.embeddings, self._encoding.head.embedding_space.width)
            vectors = await self._encoding.project(stored.embeddings)
        except InvalidLabelSet as error:
            logger.error("label set %s of the store is invalid: %s", name, error.reason)
            return None
        version = str(stored.version)
        return self._encoding.make_set(stored.definition, vectors, version, "store")

    async def _reencode_others(self) -> None:
        # Replicas of the other bundle go on with their own rows.
        others = await self._call(self._store.list_others)
        for number, (name, space) in enumerate(others.items()):
            self.reencoding_progress = (number, len(others))
            logger.info(
                "label set %s is of another embedding space: encoding it again (%d of %d)",
                *(name, number + 1, len(others)),
            )
            try:
                await self._reencode(name, space)
            except (StoreUnavailable, StoreFull):
                raise
            except ServiceError as error:
                logger.warning(
                    "label set %s of another embedding space cannot be encoded again: %s: register "
                    "it again, or serve the bundle that it is of",
                    *(name, error.describe()),
                )
        self.reencoding_progress = None

    async def _reencode(self, name: str, space: str) -> None:
        stored = await self._call(self._store.read, name, space)
        if stored is None:  # deleted meanwhile
            return
        old = stored.definition
        if old.given:
            raise InvalidLabelSet("It has embeddings of its own")
        thresholds = old.thresholds
        if old.calibration is not None:
            logger.warning("label set %s has lost its calibration: calibrate it again", name)
            thresholds = (None,) * len(thresholds)
        definition = self._encoding.check(Definition(name, old.names, old.prompts, thresholds))
        await self._call(self._store.check, definition, replace=False, if_version=None)
        embeddings = await self._encoding.embed(definition)
        await self._call(self._store.write, definition, embeddings, replace=False)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            with contextlib.suppress(StoreIncompatible):  # logged; it may be repaired
                await self._watch(self._poll)

    async def _poll(self) -> None:
        if await self._call(self._store.read_mark) != self._mark:
            await self.refresh()

    async def _watch(self, look: Callable[[], Awaitable[None]]) -> None:
        # Logs once that the store is unavailable, and once that it is back.
        try:
            await look()
        except StoreError as error:
            if self._failure is None:
                logger.warning("the label store is unavailable: %s", error)
            self._failure = str(error)
            if isinstance(error, StoreIncompatible):
                raise
        except Exception:
            logger.exception("polling the label store failed")
        else:
            if self._failure is not None:
                logger.warning("the label store is back")
            self._failure = None

    async def _call(
        self, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
    ) -> ResultT:
        if self._stopped:
            raise Draining("the label store is closed")
        return await self._run(lambda: work(*args, **options))

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            while not (await asyncio.wait([done], timeout=self._timeout_seconds))[0]:
                self._store.break_connection()
        finally:
            done.cancel()  # if the caller was cancelled before the call began
        return done.result()


def _is_current(known: LabelSet | None, stored: SetVersion) -> bool:
    return known is not None and (known.version, known.digest) == (
        str(stored.version),
        stored.digest,
    )
