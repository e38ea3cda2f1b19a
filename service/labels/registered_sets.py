"""The sets that clients register: written to the store, and visible here before it is answered."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as replace_fields
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from service import errors
from service.bundle.card import Calibration
from service.engine.heads import Embeddings, QueryArray
from service.labels.builder import LabelSetBuilder
from service.labels.definition import Definition
from service.labels.examples import Example
from service.labels.label_set import LabelSet
from service.labels.store.database import MEMORY
from service.labels.store.store import (
    ABSENT,
    PRESENT,
    LabelStore,
    SetVersion,
    WriteResult,
    check_version,
)
from service.labels.stored_sets import StoredSets

logger = logging.getLogger(__name__)


class PreparedLabel(NamedTuple):
    """A label to learn: its text's `embedding` [1, E] if the label is new, `queries` [1, K]."""

    embedding: Embeddings | None = None
    queries: QueryArray | None = None


class LearntLabel(NamedTuple):
    """A set after one of its labels has learnt."""

    labels: LabelSet
    created: bool  # whether the set is new
    added: int  # examples
    repeated: int  # photos that are examples already, or nearly so


class RegisteredSets(StoredSets):
    """The store's sets, and their writes.

    Sets that only another embedding space has in their newest version are adopted: encoded again
    and written for this one. After `hand_over`, each write is loaded by the successor too.
    """

    def __init__(
        self, store: LabelStore, builder: LabelSetBuilder, poll_seconds: float, fixed: Iterable[str]
    ) -> None:
        super().__init__(store, builder, poll_seconds, fixed)
        self._successor: RegisteredSets | None = None
        self._adopting = asyncio.Lock()
        self.reencoding_progress: tuple[int, int] | None = None
        """Sets done and in total while those of another space are encoded again; else None."""

    async def refresh(self, *, adopt: bool = False) -> None:
        """Loads the writes of other processes; adopts sets the first time and with `adopt`.

        Raises `StoreUnavailable` if it cannot.
        """
        if (adopt or self.revision < 0) and self._builder.encoders is not None:
            async with self._adopting:
                await self._adopt_others()
        await super().refresh()

    async def hand_over(self, successor: "RegisteredSets") -> None:
        """Makes each write visible in `successor`, the sets of the next bundle, as it is here.

        Returns when it has loaded all sets. Raises `StoreError` if it cannot.
        """
        if self.address == MEMORY:
            await successor._call(successor._store.move_to, self._store.database)  # noqa: SLF001
        await successor.refresh(adopt=True)  # most of the work, before writes wait for it
        self._successor = successor
        try:
            await successor.refresh(adopt=True)
        except BaseException:
            self._successor = None  # else its encoders would stay in memory
            raise

    async def register(
        self, definition: Definition, *, replace: bool = False, if_version: int | None = None
    ) -> tuple[LabelSet, bool]:
        """Encodes and writes a set as `LabelStore.write`; returns it, and whether it is new."""
        learnt = {*definition.examples}
        if not self._builder.encodes_text:
            rows = await self._call(self._store.read_examples, definition.name, "")
            learnt |= {row.label for row in rows}
        definition = self._builder.check(definition, learnt)
        # Before encoding, which may take long.
        same = await self._call(
            self._store.check, definition, replace=replace, if_version=if_version
        )
        if same is not None:
            return await self._load_one(definition.name), False
        embeddings = await self._builder.embed(definition)
        made = await self._builder.make(definition, embeddings)
        if definition.encoder == self._builder.photos.encoder:  # raises if they do not fit
            await self._builder.add_examples(made, definition.examples, ())
        write = partial(self._store.write, definition, embeddings)
        return await self._write_set(made, partial(write, replace=replace, if_version=if_version))

    async def add(self, definition: Definition) -> tuple[LabelSet, int]:
        """Adds the labels that the set lacks, or registers it; returns it, and how many are new.

        Raises `InvalidLabelSet` if a label is there in another way, or the new ones do not fit the
        set, and `LabelSetChanged` if another client changes it meanwhile.
        """
        name, encodes_text = definition.name, self._builder.encodes_text
        await self.refresh(adopt=True)  # it may be in another embedding space only
        try:
            entry, others = await self.read_definition(name)
        except errors.LabelSetNotFound:
            labels, _ = await self.register(definition, if_version=ABSENT)
            return labels, labels.num_labels
        old, version = entry.definition, entry.version
        if definition.examples or definition.calibration not in (None, old.calibration):
            raise errors.InvalidLabelSet(
                f"A calibration or examples cannot be added to {name}: import the file as another "
                "set, or replace this one with --replace"
            )
        new = self._builder.check(definition, {*old.examples, *others}).without(old)
        new_kinds = {row.embedding is None for row in new.rows.values()}
        old_kinds = {row.embedding is None for row in old.rows.values()}
        has_no_texts = encodes_text and not entry.embeddings.shape[1]  # it learnt from photos alone
        if not new_kinds <= old_kinds or (new_kinds and has_no_texts):
            raise errors.InvalidLabelSet(
                f"The labels of {name} are of another kind (texts, embeddings or photos alone): "
                "register the new ones as another set"
            )
        joined = replace_fields(old, examples={}).with_rows(old.rows | new.rows)
        check = self._store.check
        if await self._call(check, joined, replace=True, if_version=version) is not None:
            return await self._load_one(name), 0
        embeddings = np.concatenate((entry.embeddings, await self._builder.embed(new)))
        made = await self._builder.make(joined, embeddings)
        write = partial(self._store.write, joined, embeddings, replace=True, if_version=version)
        labels, _ = await self._write_set(made, write)
        return labels, len(new.names)

    async def calibrate(
        self,
        name: str,
        thresholds: Mapping[str, float | None],
        calibration: Calibration | None = None,
        if_version: int | None = None,
    ) -> LabelSet:
        """Writes thresholds (0..1) of some labels of a set, and its calibration if given.

        A threshold of None is the open head's. Raises `LabelSetChanged` if the set is not in
        `if_version`, or is changed meanwhile, and `UnknownLabel` if a label is not in it.
        """
        old = await self._load_one(name)
        version = int(old.version)
        check_version(name, version, if_version)
        if unknown := tuple(label for label in thresholds if label not in old.positions):
            raise errors.UnknownLabel(unknown, [name], old.names)
        own = old.own_thresholds
        new = tuple(map(thresholds.get, old.names, own))
        calibration = calibration or old.own_calibration
        if (new, calibration) == (own, old.own_calibration):
            return old
        given = tuple(np.flatnonzero(old.own_embeddings).tolist())
        definition = Definition(name, old.names, old.prompts, new, given, calibration=calibration)
        made = await self._builder.make(definition, definition.embeddings, start=old.vectors)
        write = partial(self._store.calibrate, definition, SetVersion(version, old.digest or ""))
        return (await self._write_set(made, write))[0]

    async def prepare_label(self, name: str, label: str) -> PreparedLabel:
        """Encodes the text of a label to learn, if the set has room for it.

        Raises `TextNotEncodable` for a new label of a set of texts, if the bundle encodes none.
        """
        await self.refresh()  # else a set that another process deleted would be made without texts
        known, encoders = self.by_name.get(name), self._builder.encoders
        names = {} if known is None else known.positions
        await self._call(self._store.check_room, name, len(names.keys() | {label}))
        queries = None if known is None else known.queries
        if queries is not None and label in names:
            row = names[label]
            return PreparedLabel(queries=queries[row : row + 1])
        if known is not None and queries is None:
            return PreparedLabel()
        if encoders is None or not encoders.encodes_text:
            if known is not None:
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
    ) -> LearntLabel:
        """Adds examples as `LabelStore.learn`.

        Raises `LabelSetChanged` if another client deletes them at once.
        """
        if if_version is None and prepared.embedding is None and prepared.queries is not None:
            if_version = PRESENT  # the set has the label, unless it is deleted meanwhile
        write = partial(
            self._store.learn,
            *(name, label, positive, negative),
            encoder=self._builder.photos.encoder,
            embedding=prepared.embedding,
            replace=replace,
            if_version=if_version,
        )
        learnt, labels = await self._write(name, write)
        labels = labels or await self._load_one(name)
        if label not in labels.examples:
            raise errors.LabelSetChanged(name, labels.version)
        repeated = len(positive) + len(negative) - learnt.added
        return LearntLabel(labels, learnt.created, learnt.added, repeated)

    async def delete_examples(
        self, name: str, label: str, if_version: int | None = None
    ) -> LabelSet:
        """Deletes the examples of a label; its text stays. Raises as `LabelStore` does."""
        write = partial(self._store.delete_examples, name, label, if_version)
        _, labels = await self._write(name, write)
        return labels or await self._load_one(name)

    async def delete(self, name: str, if_version: int | None = None) -> None:
        """Deletes a set; requests that have pinned its snapshot keep it."""
        try:
            _, labels = await self._write(name, partial(self._store.delete, name, if_version))
        except errors.LabelSetNotFound as error:
            others = sorted(self.by_name.keys() - self._fixed)
            known = (*self._fixed, *others) if self.revision >= 0 else ()
            raise errors.LabelSetNotFound(name, known) from error
        if labels is None:
            self.by_name = MappingProxyType({n: s for n, s in self.by_name.items() if n != name})

    async def _adopt_others(self) -> None:
        # Replicas of the other bundle keep their rows.
        others = await self._call(self._store.list_others)
        for number, (name, space) in enumerate(others.items()):
            self.reencoding_progress = (number, len(others))
            try:
                await self._adopt(name, space, f"{number + 1} of {len(others)}")
            except (errors.StoreUnavailable, errors.StoreFull):
                raise
            except errors.ServiceError as error:
                logger.warning(
                    "label set %s of another embedding space cannot be encoded again: %s: register "
                    "it again, or serve the bundle that it is of",
                    *(name, error.describe()),
                )
        self.reencoding_progress = None

    async def _adopt(self, name: str, space: str, progress: str) -> None:
        entry = await self._call(self._store.read, name, space)
        ours = await self._call(self._store.read, name)
        if entry is None:  # deleted meanwhile
            return
        old, version = entry.definition, None
        if ours is not None:
            known, version = ours.definition, ours.version
            if (known.names, known.prompts) == (old.names, old.prompts):
                return  # each space has thresholds of its own
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
        await self.register(definition, replace=version is not None, if_version=version)

    async def _write_set(
        self, made: LabelSet, write: Callable[[], WriteResult]
    ) -> tuple[LabelSet, bool]:
        written, labels = await self._write(made.name, write, made)
        digest = written.digest or made.digest
        if labels is None or labels.digest != digest or int(labels.version) < written.version:
            # Another client has changed the set since, and this one must not overwrite that.
            labels = replace_fields(made, digest=digest, version=str(written.version))
        return labels, written.created

    async def _write(
        self, name: str, write: Callable[[], WriteResult], made: LabelSet | None = None
    ) -> tuple[WriteResult, LabelSet | None]:
        """Calls the store and loads the set; returns the set too, None if it cannot be loaded."""
        labels = None
        async with self._changing:
            result = await self._call(write)
            if made is not None and result.digest is not None:
                made = replace_fields(made, digest=result.digest)
            try:
                await self._load_sets(name, made, result.entry)
                labels = self.by_name.get(name)
            except errors.StoreError as error:  # the write is durable, and a poll will load it
                self._note_failure(error)
        if self._successor is not None:
            with contextlib.suppress(errors.ServiceError):  # a poll will load it
                await self._successor.refresh(adopt=True)
        return result, labels

    async def _load_one(self, name: str) -> LabelSet:
        async with self._changing:
            await self._load_sets(name)
        if name not in self.by_name:  # deleted meanwhile
            raise errors.LabelSetNotFound(name)
        return self.by_name[name]
