"""The store's label sets in this process: loaded, and followed while others write them.

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

from service import errors
from service.labels.builder import LabelSetBuilder
from service.labels.definition import Definition
from service.labels.label_set import LabelSet
from service.labels.sources.learnt import Lessons, find_kinds, read_lesson
from service.labels.sources.source import Lesson
from service.labels.store.store import LabelStore, LessonRow, SetVersion, StoreEntry, StoreState
from service.labels.words import Dictionary, load_words

# The largest set takes seconds to write, so a call that takes longer hangs.
_TIMEOUT_SECONDS = 30.0
_CLOSE_TIMEOUT_SECONDS = 1.0

logger = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class StoredSets:
    """Snapshots of the store's sets; use it from one event loop.

    They are unread (`revision` is -1) until the first `refresh`, then as new as the last one:
    `start` polls the store. After `stop`, the store is closed and calls raise `Draining`.
    """

    def __init__(
        self, store: LabelStore, builder: LabelSetBuilder, poll_seconds: float, fixed: Iterable[str]
    ) -> None:
        """Loads nothing before `start`; sets named in `fixed` hide those of the store."""
        self._store = store
        self._builder = builder
        self._poll_seconds = poll_seconds
        self._fixed = tuple(fixed)
        self.by_name: Mapping[str, LabelSet] = MappingProxyType({})
        self._state = StoreState(-1, 0)
        self._changing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._kinds = find_kinds(builder.photos.encoder)  # by key of the store
        self._keys = {kind: key for key, kind in self._kinds.items()}
        self._polling: asyncio.Task[None] | None = None
        self._timeout_seconds = _TIMEOUT_SECONDS
        self._stopped = False
        self.failure: str | None = None
        """Why the last poll of the store failed."""

    @property
    def address(self) -> str:
        """Path or URL of the store, without user and password."""
        return self._store.database.address

    @property
    def revision(self) -> int:
        """Revision of the store that is loaded; -1 before it was first read."""
        return self._state.revision

    async def start(self) -> None:
        """Loads the sets and starts polling. Raises `StartError` for another schema version."""
        try:
            await self._poll()
        except errors.StoreIncompatible as error:
            raise errors.StartError(str(error)) from error
        self._polling = asyncio.create_task(self._poll_often(), name="label store")

    async def stop(self) -> None:
        """Stops polling and closes the store; other calls raise `Draining` from now on."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        self._timeout_seconds = _CLOSE_TIMEOUT_SECONDS
        self._stopped = True  # a call after `close` would open a connection that stays open
        with contextlib.suppress(errors.StoreError):
            await self._run(self._store.close)
        self._thread.shutdown(wait=False)

    async def refresh(self) -> None:
        """Loads the writes of other processes. Raises `StoreUnavailable` if it cannot."""
        async with self._changing:
            await self._load_sets()

    async def reach(self, version: int, names: Sequence[str]) -> None:
        """Loads writes until `names` have `version`.

        Raises `VersionNotReached` if the store has none such, `StoreUnavailable` if it is away.
        """
        if not self._has_reached(version, names):
            await self.refresh()
        if not self._has_reached(version, names):
            raise errors.VersionNotReached(version, max(0, self.revision))

    async def read_definition(self, name: str) -> tuple[StoreEntry, list[str]]:
        """Returns a set with its lessons, and labels that have only other encoders' lessons."""
        entry = await self._call(self._store.read, name)
        if entry is None:
            raise errors.LabelSetNotFound(name)
        rows = await self._call(self._store.read_lessons, name, self._kinds)
        known = self._parse(name, rows, {})
        # Another process may have appended a label meanwhile.
        lessons = {label: known[label] for label in entry.definition.names if label in known}
        used = self._builder.photos.encoder if lessons else None
        others = sorted({row.label for row in rows} - known.keys())
        words = (await self._read_dictionary(name, entry.definition)).words
        definition = replace_fields(entry.definition, lessons=lessons, encoder=used, words=words)
        return entry._replace(definition=definition), others

    async def _load_sets(
        self, name: str | None = None, made: LabelSet | None = None, entry: StoreEntry | None = None
    ) -> None:
        """Loads the sets that have changed, or one, which may be `made` or read already."""
        state, versions = await self._call(self._store.read_versions, name)
        is_restored = state.connections != self._state.connections
        loaded = {} if name is None else {n: s for n, s in self.by_name.items() if n != name}
        for set_name, version in versions.items():
            known = self.by_name.get(set_name)
            wanted = (str(version.version), version.digest)
            if is_restored or known is None or (known.version, known.digest) != wanted:
                base = made if made and made.digest == version.digest else known
                old = None if is_restored else known
                known = await self._load(set_name, version, base, old, entry)
            if known is not None:
                loaded[set_name] = known
        for hidden in sorted((loaded.keys() - self.by_name.keys()) & {*self._fixed}):
            logger.warning("label set %s of the store is hidden by a read-only one", hidden)
        self.by_name = MappingProxyType(loaded)
        # After one set alone, others may be missing, unless the only write since is its own.
        is_next = state == self._state._replace(revision=self.revision + 1)
        is_own = is_next and any(state.revision == version.version for version in versions.values())
        if name is None or is_own:
            self._state = state

    async def _load(
        self,
        name: str,
        version: SetVersion,
        base: LabelSet | None,
        known: LabelSet | None,
        entry: StoreEntry | None,
    ) -> LabelSet | None:
        """Returns a set with the queries that `base` has and the lessons that `known` has."""
        try:
            labels = base
            if labels is None or labels.digest != version.digest:
                if entry is None or entry.definition.digest != version.digest:
                    entry = await self._call(self._store.read, name)
                if entry is None:
                    return None  # deleted meanwhile; the next poll differs
                definition, start = entry.definition, None
                if base is not None and entry.embeddings.shape[1]:
                    is_extended = await asyncio.to_thread(_extends, definition, base)
                    start = base.source.vectors if is_extended else None  # of its first labels
                labels = await self._builder.make(definition, entry.embeddings, start=start)
            dictionary = await self._read_dictionary(name, labels, known)
            labels = replace_fields(labels, version=str(version.version), dictionary=dictionary)
            old: Lessons = {}
            after = None
            if known is not None and (known.queries is None) == (labels.queries is None):
                labels = replace_fields(
                    labels,
                    untaught=labels.untaught or labels,
                    learnt=known.learnt,
                    unused_lessons=known.unused_lessons,
                )
                old, after = known.lessons, int(known.version)
            rows = await self._call(self._store.read_lessons, name, self._kinds, after)
            if any(row.content is None and self._is_new(row, old) for row in rows):
                rows = await self._call(self._store.read_lessons, name, self._kinds)
            lessons = self._parse(name, rows, old)
            return await self._builder.teach(labels, lessons, {row.label for row in rows})
        except errors.InvalidLabelSet as error:
            logger.error("label set %s of the store is invalid: %s", name, error.reason)
            return None

    async def _read_dictionary(
        self, name: str, labels: LabelSet | Definition, known: LabelSet | None = None
    ) -> Dictionary:
        """Returns the words of a set's labels; those of `known` if they are the same."""
        text, names = await self._call(self._store.read_words, name), labels.names
        if known is not None and (known.dictionary.text, known.names) == (text, names):
            return known.dictionary
        try:
            words = await asyncio.to_thread(load_words, text, frozenset(names))
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise errors.InvalidLabelSet("Its words in the database are damaged") from error
        return Dictionary(names, words, text)

    def _is_new(self, row: LessonRow, old: Lessons) -> bool:
        kind = self._kinds.get(row.key)
        return kind is not None and kind not in old.get(row.label, {})

    def _parse(self, name: str, rows: Iterable[LessonRow], old: Lessons) -> Lessons:
        """Returns the lessons of this encoder; logs damaged ones, whose labels keep their text."""
        lessons: dict[str, dict[str, Lesson]] = {}
        for row in rows:
            if (kind := self._kinds.get(row.key)) is None:
                continue
            try:
                content = row.content
                lesson = read_lesson(kind, content) if content else old[row.label][kind]
                lessons.setdefault(row.label, {})[kind] = lesson
            except errors.InvalidLabelSet as error:
                logger.error("label set %s: %s: %s", name, errors.quote(row.label), error.reason)
        return lessons

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        if self.revision >= version:
            return True
        # A missing set may be one that another process has just written.
        sets = [self.by_name.get(name) for name in names if name not in self._fixed]
        return bool(sets) and all(known and int(known.version) >= version for known in sets)

    async def _poll_often(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            with contextlib.suppress(errors.StoreIncompatible):  # logged; it may be repaired
                await self._poll()

    async def _poll(self) -> None:
        # Logs once that the store is unavailable, and once that it is back.
        try:
            if await self._call(self._store.read_state) != self._state:
                await self.refresh()
        except errors.StoreError as error:
            self._note_failure(error)
            if isinstance(error, errors.StoreIncompatible):
                raise
        except Exception:
            logger.exception("polling the label store failed")
        else:
            if self.failure is not None:
                logger.warning("the label store is back")
            self.failure = None

    def _note_failure(self, error: errors.StoreError) -> None:
        if self.failure is None:
            logger.warning("the label store is unavailable: %s", error)
        self.failure = str(error)

    async def _call(
        self, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
    ) -> ResultT:
        if self._stopped:
            raise errors.Draining("the label store is closed")
        return await self._run(lambda: work(*args, **options))

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            while not (await asyncio.wait([done], timeout=self._timeout_seconds))[0]:
                self._store.database.break_connection()
        finally:
            done.cancel()  # if the caller was cancelled before the call began
        return done.result()


def _extends(definition: Definition, base: LabelSet) -> bool:
    """Returns whether a set begins with the labels of `base`, whatever their thresholds."""
    first, thresholds = definition.cut(base.num_labels), base.own_thresholds
    first = replace_fields(first, thresholds=thresholds, calibration=base.own_calibration)
    return first.digest == base.digest
