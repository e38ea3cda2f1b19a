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
from typing import NamedTuple, ParamSpec, TypeVar

from service import errors
from service.bundle.card import Calibration
from service.engine.heads import Embeddings, QueryArray
from service.errors import quote
from service.labels.builder import LabelSetBuilder
from service.labels.definition import Definition
from service.labels.examples import Example, Examples
from service.labels.label_set import LabelSet
from service.labels.store.database import MEMORY
from service.labels.store.store import (
    PRESENT,
    ExamplesRow,
    LabelStore,
    SetVersion,
    StoreState,
    check_version,
)

# The largest set takes seconds to write, so a call that takes longer hangs.
_TIMEOUT_SECONDS = 30.0
_CLOSE_TIMEOUT_SECONDS = 1.0

logger = logging.getLogger(__name__)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class PreparedLabel(NamedTuple):
    """A label to learn: its text's `embedding` [1, E] if the label is new, `queries` [1, K]."""

    embedding: Embeddings | None = None
    queries: QueryArray | None = None


class Learnt(NamedTuple):
    """The set after a label learnt, whether it is new, and how many examples were."""

    labels: LabelSet
    created: bool
    added: int


class RegisteredSets:
    """Snapshots of the store's sets; use it from one event loop."""

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
        self._following: asyncio.Task[None] | None = None
        self._timeout_seconds = _TIMEOUT_SECONDS
        self.failure: str | None = None
        """Why the last poll of the store failed."""
        self._made: dict[str, LabelSet] = {}  # by name, of writes: not encoded again
        self._stopped = False
        self._successor: RegisteredSets | None = None
        self.reencoding_progress: tuple[int, int] | None = None
        """Sets done and in total while those of another space are encoded again; else None."""

    @property
    def place(self) -> str:
        """Path or URL of the store, without user and password."""
        return self._store.database.address

    @property
    def revision(self) -> int:
        """Revision of the store that is loaded; -1 before it was first read."""
        return self._state.revision

    async def start(self) -> None:
        """Loads the sets and starts polling; raises `StartError` for another schema version."""
        try:
            await self._poll()
        except errors.StoreIncompatible as error:
            raise errors.StartError(str(error)) from error
        self._following = asyncio.create_task(self._follow(), name="label store")

    async def stop(self) -> None:
        """Stops polling and closes the store; other calls raise `Draining` from now on."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._timeout_seconds = _CLOSE_TIMEOUT_SECONDS
        self._stopped = True  # a call after `close` would open a connection that stays open
        with contextlib.suppress(errors.StoreError):
            await self._run(self._store.close)
        self._thread.shutdown(wait=False)

    async def hand_over(self, successor: "RegisteredSets") -> None:
        """Gives those of the next bundle each write here before it is answered; or `StoreError`."""
        if self._store.database.address == MEMORY:
            await successor._call(successor._store.move_to, self._store.database)  # noqa: SLF001
        await successor.refresh(adopting=True)  # most of the work, before writes wait for it
        self._successor = successor
        try:
            await successor.refresh(adopting=True)
        except BaseException:
            self._successor = None  # else its encoders would stay in memory
            raise

    async def refresh(self, written: str | None = None, *, adopting: bool = False) -> None:
        """Loads the writes of other processes; raises `StoreUnavailable` if it cannot.

        Before the store was first read, a set that this process has `written` is loaded alone.
        With `adopting`, sets of other spaces are encoded again, as by the first read.
        """
        async with self._changing:
            is_alone = self.revision < 0 and written is not None
            is_first = (self.revision < 0 and not is_alone) or adopting
            if is_first and self._builder.encoders is not None:
                await self._reencode_others()
            state, versions = await self._call(self._store.read_versions)
            loaded: dict[str, LabelSet] = {}
            if is_alone:
                state, loaded = self._state, {**self.by_name}
                loaded.pop(str(written), None)
                versions = {name: each for name, each in versions.items() if name == written}
            restored = state.connections != self._state.connections
            for name, version in versions.items():
                known = self.by_name.get(name)
                wanted = (str(version.version), version.digest)
                if restored or known is None or (known.version, known.digest) != wanted:
                    known = await self._load(name, version, known, restored=restored)
                if known is not None:
                    loaded[name] = known
            for name in sorted(loaded.keys() - self.by_name.keys()):
                if name in self._fixed:
                    logger.warning("label set %s of the store is hidden by a read-only one", name)
            self.by_name, self._state = MappingProxyType(loaded), state

    async def reach(self, version: int, names: Sequence[str]) -> None:
        """Loads writes until `names` have `version`; else `VersionNotReached` or `StoreError`."""
        if not self._has_reached(version, names):
            await self.refresh()
        if not self._has_reached(version, names):
            raise errors.VersionNotReached(version, max(0, self.revision))

    async def register(
        self, definition: Definition, *, replace: bool = False, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Encodes and writes a set as `LabelStore.write`; returns it, and whether it is new."""
        definition = await self._check(definition)
        # Before encoding, which may take long.
        same = await self._call(
            self._store.check, definition, replace=replace, if_version=if_version
        )
        if same is not None:
            return await self._find_latest(definition.name), False
        embeddings = await self._builder.embed(definition)
        labels = await self._builder.make(definition, embeddings, "0", "store")
        if definition.encoder == self._builder.photos.encoder:
            await self._builder.add_examples(
                labels, definition.examples, ()
            )  # raises if they do not fit
        written = await self._call(
            self._store.write, definition, embeddings, replace=replace, if_version=if_version
        )
        return await self._load_written(labels, written.version), written.created

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
            raise errors.LabelSetNotFound(name)
        old = entry.definition
        found = SetVersion(entry.version, old.digest)
        check_version(name, found, if_version)
        names = frozenset(old.names)
        if unknown := tuple(label for label in thresholds if label not in names):
            raise errors.UnknownLabel(unknown, [name], old.names)
        pairs = zip(old.names, old.thresholds, strict=True)
        new = tuple(thresholds.get(label, own) for label, own in pairs)
        definition = replace_fields(old, thresholds=new, calibration=calibration or old.calibration)
        known = self.by_name.get(name)
        if known is not None and known.digest == old.digest:
            known = replace_fields(known, digest=definition.digest)  # the queries are the same
        labels = await self._builder.make(definition, entry.embeddings, "0", "store", known)
        written = await self._call(
            self._store.write, definition, entry.embeddings, replace=True, if_version=entry.version
        )
        return await self._load_written(labels, written.version)

    async def prepare_label(self, name: str, label: str) -> PreparedLabel:
        """Encodes the text of a label to learn, if it has room; or raises `TextNotEncodable`."""
        await self.refresh()  # else a set that another process deleted would be made without texts
        known, encoders = self.by_name.get(name), self._builder.encoders
        names = {} if known is None else known.positions
        count = len(names) + (label not in names)
        await self._call(self._store.check_room, name, count)
        queries = None if known is None else known.queries
        if queries is not None and label in names:
            place = names[label]
            return PreparedLabel(queries=queries[place : place + 1])
        if encoders is None or not encoders.encodes_text or (known is not None and queries is None):
            if queries is not None:
                raise errors.TextNotEncodable(label)
            return PreparedLabel()
        embedding = await encoders.embed(Definition(name, (label,), (None,), (None,)))
        vectors = await encoders.project(embedding, with_keys=False)
        return PreparedLabel(embedding, vectors.queries)

    async def learn(  # noqa: PLR0913 - options are keywords
        self,
        name: str,
        label: str,
        prepared: PreparedLabel,
        positive: Sequence[Example],
        negative: Sequence[Example],
        *,
        replace: bool = False,
        if_version: int | None = None,
    ) -> Learnt:
        """Adds examples as `LabelStore.learn`; `LabelSetChanged` if they are deleted at once."""
        if if_version is None and prepared.embedding is None and prepared.queries is not None:
            if_version = PRESENT  # the set has the label, unless it is deleted meanwhile
        learnt = await self._call(
            self._store.learn,
            *(name, label, positive, negative),
            encoder=self._builder.photos.encoder,
            embedding=prepared.embedding,
            replace=replace,
            if_version=if_version,
        )
        if (new := learnt.entry) is not None:
            known = self.by_name.get(name)
            made = await self._builder.make(new.definition, new.embeddings, "0", "store", known)
            self._made[name] = made
        labels = await self._find_latest(name)
        if label not in labels.examples:
            raise errors.LabelSetChanged(name, labels.version)
        return Learnt(labels, learnt.created, learnt.added)

    async def delete_examples(
        self, name: str, label: str, if_version: int | None = None
    ) -> LabelSet:
        """Deletes the examples of a label; its text stays. Raises as `LabelStore` does."""
        await self._call(self._store.delete_examples, name, label, if_version)
        return await self._find_latest(name)

    async def read_definition(self, name: str) -> tuple[Definition, Embeddings, list[str]]:
        """Returns a set with examples, all embeddings, and labels with other encoders' examples."""
        entry = await self._call(self._store.read, name)
        if entry is None:
            raise errors.LabelSetNotFound(name)
        encoder = self._builder.photos.encoder
        rows = await self._call(self._store.read_examples, name, encoder)
        found = _read_examples(name, encoder, rows, {})
        # Another process may have appended a label meanwhile.
        examples = {label: found[label] for label in entry.definition.names if label in found}
        used = encoder if examples else None
        others = sorted({row.label for row in rows} - found.keys())
        definition = replace_fields(entry.definition, examples=examples, encoder=used)
        return definition, entry.embeddings, others

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned its snapshot keep it."""
        try:
            await self._call(self._store.delete, name, if_version)
        except errors.LabelSetNotFound as error:
            others = sorted(self.by_name.keys() - self._fixed)
            known = (*self._fixed, *others) if self.revision >= 0 else ()
            raise errors.LabelSetNotFound(name, known) from error
        self.by_name = MappingProxyType({n: s for n, s in self.by_name.items() if n != name})
        await self._refresh_written(name)

    async def _load_written(self, labels: LabelSet, version: int) -> LabelSet:
        self._made[labels.name] = labels
        await self._refresh_written(labels.name)
        found = self.by_name.get(labels.name)
        if found is None or found.digest != labels.digest or int(found.version) < version:
            # Another client has changed the set since, and this one must not overwrite that.
            return replace_fields(labels, version=str(version))
        return found

    async def _refresh_written(self, name: str) -> None:
        try:
            await self._follow_write(name)
        except errors.StoreError as error:  # the write is durable, and a poll will load it
            self._note_failure(error)

    async def _follow_write(self, name: str) -> None:
        await self.refresh(name)
        if self._successor is not None:
            with contextlib.suppress(errors.ServiceError):  # a poll will load it
                await self._successor.refresh(adopting=True)

    async def _find_latest(self, name: str) -> LabelSet:
        await self._follow_write(name)
        found = self.by_name.get(name)
        if found is None:  # deleted meanwhile
            raise errors.LabelSetNotFound(name)
        return found

    async def _check(self, definition: Definition) -> Definition:
        learnt: set[str] = {*definition.examples}
        if not self._builder.encodes_text:
            rows = await self._call(self._store.read_examples, definition.name, "")
            learnt |= {row.label for row in rows}
        return self._builder.check(definition, learnt)

    def _has_reached(self, version: int, names: Sequence[str]) -> bool:
        if self.revision >= version:
            return True
        # A missing set may be one that another process has just written.
        sets = [self.by_name.get(name) for name in names if name not in self._fixed]
        return bool(sets) and all(known and int(known.version) >= version for known in sets)

    async def _load(
        self, name: str, version: SetVersion, known: LabelSet | None, *, restored: bool
    ) -> LabelSet | None:
        try:
            made = self._made.pop(name, None)
            labels = made if made is not None and made.digest == version.digest else known
            if labels is None or labels.digest != version.digest:
                entry = await self._call(self._store.read, name)
                if entry is None:
                    return None  # deleted meanwhile; the next poll differs
                labels = await self._builder.make(
                    entry.definition, entry.embeddings, "0", "store", known
                )
            labels = replace_fields(labels, version=str(version.version))
            return await self._add_examples(labels, None if restored else known)
        except errors.InvalidLabelSet as error:
            logger.error("label set %s of the store is invalid: %s", name, error.reason)
            return None

    async def _add_examples(self, labels: LabelSet, known: LabelSet | None) -> LabelSet:
        """Adds the store's examples to a snapshot, without reading those that `known` has."""
        old: dict[str, Examples] = {}
        after = None
        if known is not None and (known.queries is None) == (labels.queries is None):
            labels = replace_fields(
                labels, learnt=known.learnt, unused_examples=known.unused_examples
            )
            old, after = known.examples, int(known.version)
        encoder = self._builder.photos.encoder
        rows = await self._call(self._store.read_examples, labels.name, encoder, after)
        if any(r.encoder == encoder and r.content is None and r.label not in old for r in rows):
            rows = await self._call(self._store.read_examples, labels.name, encoder)
        examples = _read_examples(labels.name, encoder, rows, old)
        return await self._builder.add_examples(labels, examples, {row.label for row in rows})

    async def _reencode_others(self) -> None:
        # Replicas of the other bundle keep their rows.
        others = await self._call(self._store.list_others)
        for number, (name, space) in enumerate(others.items()):
            self.reencoding_progress = (number, len(others))
            try:
                await self._reencode(name, space, f"{number + 1} of {len(others)}")
            except (errors.StoreUnavailable, errors.StoreFull):
                raise
            except errors.ServiceError as error:
                logger.warning(
                    "label set %s of another embedding space cannot be encoded again: %s: register "
                    "it again, or serve the bundle that it is of",
                    *(name, error.describe()),
                )
        self.reencoding_progress = None

    async def _reencode(self, name: str, space: str, progress: str) -> None:
        entry = await self._call(self._store.read, name, space)
        ours = await self._call(self._store.read, name)
        if entry is None:  # deleted meanwhile
            return
        old, version = entry.definition, None
        if ours is not None:
            known, version = ours.definition, ours.version
            if (known.names, known.prompts) == (old.names, old.prompts):
                return  # thresholds are each space's own
        logger.info(
            "label set %s is of another embedding space: encoding it again (%s)", name, progress
        )
        if old.given:
            raise errors.InvalidLabelSet("It has embeddings of its own")
        thresholds = old.thresholds
        if old.calibration is not None:
            logger.warning("label set %s has lost its calibration: calibrate it again", name)
            thresholds = (None,) * len(thresholds)
        definition = Definition(name, old.names, old.prompts, thresholds)
        definition = await self._check(definition)
        replace = version is not None
        await self._call(self._store.check, definition, replace=replace, if_version=version)
        embeddings = await self._builder.embed(definition)
        await self._call(
            self._store.write, definition, embeddings, replace=replace, if_version=version
        )

    async def _follow(self) -> None:
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


def _read_examples(
    name: str, encoder: str, rows: Iterable[ExamplesRow], old: Mapping[str, Examples]
) -> dict[str, Examples]:
    """Returns the examples of this encoder, without damaged ones: their labels have their text."""
    found = {}
    for row in rows:
        if row.encoder == encoder:
            try:
                found[row.label] = (
                    Examples.from_bytes(row.content) if row.content else old[row.label]
                )
            except errors.InvalidLabelSet as error:
                logger.error("label set %s: %s: %s", name, quote(row.label), error.reason)
    return found
