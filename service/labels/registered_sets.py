"""The sets that clients registered, in this process: written to the store, and followed there.

Readers take the mapping `by_name`, which is replaced as a whole, never changed. One thread calls
the store. While the store is unavailable, the loaded sets are served.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from service.labels.encoders import LabelEncoders
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


class RegisteredSets:
    """Snapshots of the store's sets; use it from one event loop."""

    def __init__(
        self,
        store: LabelStore,
        encoders: LabelEncoders,
        poll_seconds: float,
        fixed: Iterable[str],
    ) -> None:
        """Loads nothing before `start`; `fixed` are names of sets outside the store.

        They hide sets of the store with the same name.
        """
        self._store = store
        self._encoders = encoders
        self._poll_seconds = poll_seconds
        self._fixed = tuple(fixed)
        self.by_name: Mapping[str, LabelSet] = MappingProxyType({})
        self._state = StoreState(-1, 0)
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._following: asyncio.Task[None] | None = None
        self._timeout_seconds = _TIMEOUT_SECONDS
        self.failure: str | None = None
        """Why the last poll of the store failed."""
        self._stopped = False
        self.reencoding_progress: tuple[int, int] | None = None
        """Sets done and in total while those of another space are encoded again; else None."""

    @property
    def revision(self) -> int:
        """Revision of the store that is loaded; -1 before it was first read."""
        return self._state.revision

    async def start(self) -> None:
        """Loads the sets, if the store answers, and starts polling.

        Raises `StartError` if the store has another schema version.
        """
        try:
            await self._poll()
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
            state, versions = await self._call(self._store.read_versions)
            loaded: dict[str, LabelSet] = {}
            for name, version in versions.items():
                known = self.by_name.get(name)
                if not _is_current(known, version):
                    known = await self._load(name)
                if known is not None:
                    loaded[name] = known
            for name in sorted(loaded.keys() - self.by_name.keys()):
                if name in self._fixed:
                    logger.warning("label set %s of the store is hidden by a read-only one", name)
            self.by_name, self._state = MappingProxyType(loaded), state

    async def reach(self, version: int, names: Sequence[str]) -> None:
        """Loads the store's writes unless the sets `names` are at `version` or later.

        Raises `VersionNotReached` if they still are not, or `StoreUnavailable` if it cannot load.
        """
        if not self._has_reached(version, names):
            await self.refresh()
        if not self._has_reached(version, names):
            raise VersionNotReached(version, max(0, self.revision))

    async def register(
        self, definition: Definition, *, replace: bool = False, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Encodes a set and writes it; when this returns, it is durable, and in `by_name`.

        Arguments and errors as of `LabelStore.write`; returns the set, and whether its name is new.
        """
        definition = self._encoders.check(definition)
        # Before encoding, which may take long.
        same = await self._call(
            self._store.check, definition, replace=replace, if_version=if_version
        )
        if same is not None:
            return await self._find_current(definition, same), False
        embeddings = await self._encoders.embed(definition)
        vectors = await self._encoders.project(embeddings)
        return await self._commit(
            definition, embeddings, vectors, replace=replace, if_version=if_version
        )

    async def calibrate(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        calibration: Calibration | None = None,
        if_version: int | None = None,
    ) -> LabelSet:
        """Writes thresholds (0..1) of some labels of a set, and its calibration if given.

        A threshold of None is the open head's. Raises `LabelSetChanged` if the set is not in
        `if_version`, or is changed meanwhile; `UnknownLabel` if a label is not in it.
        """
        entry = await self._call(self._store.read, name)
        if entry is None:
            raise LabelSetNotFound(name)
        old = entry.definition
        found = SetVersion(entry.version, old.digest)
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
            vectors = await self._encoders.project(entry.embeddings)
        definition = replace_fields(old, thresholds=new, calibration=calibration or old.calibration)
        labels, _ = await self._commit(
            definition, entry.embeddings, vectors, replace=True, if_version=entry.version
        )
        return labels

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned its snapshot keep it."""
        async with self._changing:
            try:
                written = await self._call(self._store.delete, name, if_version)
            except LabelSetNotFound as error:
                others = sorted(self.by_name.keys() - self._fixed)
                known = (*self._fixed, *others) if self.revision >= 0 else ()
                raise LabelSetNotFound(name, known) from error
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
                labels = self._encoders.make_set(definition, vectors, version, "store")
                self._publish({**self.by_name, labels.name: labels}, written)
                return labels, written.created
        return await self._find_current(definition, written.version), False

    async def _find_current(self, definition: Definition, version: int) -> LabelSet:
        written = SetVersion(version, definition.digest)
        if not _is_current(self.by_name.get(definition.name), written):
            await self.refresh()
        found = self.by_name.get(definition.name)
        if found is None:  # deleted meanwhile
            raise LabelSetNotFound(definition.name)
        return found

    def _publish(self, sets: dict[str, LabelSet], written: WriteResult) -> None:
        self.by_name = MappingProxyType(sets)
        if written.previous == self.revision:  # else another process wrote too: poll again
            self._state = self._state._replace(revision=written.version)

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        if self.revision >= version:
            return True
        # A missing set may be one that another process has just written.
        sets = [self.by_name.get(name) for name in names if name not in self._fixed]
        return bool(sets) and all(known and int(known.version) >= version for known in sets)

    async def _load(self, name: str) -> LabelSet | None:
        try:
            entry = await self._call(self._store.read, name)
            if entry is None:
                return None  # deleted meanwhile; the next poll differs
            check_embeddings(entry.embeddings, self._encoders.head.embedding_space.width)
            vectors = await self._encoders.project(entry.embeddings)
        except InvalidLabelSet as error:
            logger.error("label set %s of the store is invalid: %s", name, error.reason)
            return None
        version = str(entry.version)
        return self._encoders.make_set(entry.definition, vectors, version, "store")

    async def _reencode_others(self) -> None:
        # Replicas of the other bundle keep their rows.
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
        entry = await self._call(self._store.read, name, space)
        if entry is None:  # deleted meanwhile
            return
        old = entry.definition
        if old.given:
            raise InvalidLabelSet("It has embeddings of its own")
        thresholds = old.thresholds
        if old.calibration is not None:
            logger.warning("label set %s has lost its calibration: calibrate it again", name)
            thresholds = (None,) * len(thresholds)
        definition = self._encoders.check(Definition(name, old.names, old.prompts, thresholds))
        await self._call(self._store.check, definition, replace=False, if_version=None)
        embeddings = await self._encoders.embed(definition)
        await self._call(self._store.write, definition, embeddings, replace=False)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            with contextlib.suppress(StoreIncompatible):  # logged; it may be repaired
                await self._poll()

    async def _poll(self) -> None:
        # Logs once that the store is unavailable, and once that it is back.
        try:
            if await self._call(self._store.read_state) != self._state:
                await self.refresh()
        except StoreError as error:
            if self.failure is None:
                logger.warning("the label store is unavailable: %s", error)
            self.failure = str(error)
            if isinstance(error, StoreIncompatible):
                raise
        except Exception:
            logger.exception("polling the label store failed")
        else:
            if self.failure is not None:
                logger.warning("the label store is back")
            self.failure = None

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


def _is_current(known: LabelSet | None, latest: SetVersion) -> bool:
    wanted = str(latest.version), latest.digest
    return known is not None and (known.version, known.digest) == wanted
