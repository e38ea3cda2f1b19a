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
from service.labels.definition import Definition, LabelRow
from service.labels.label_set import LabelSet
from service.labels.sources.examples import Example, Examples, add_examples
from service.labels.sources.learnt import find_kinds, list_contents
from service.labels.sources.source import Lesson
from service.labels.store.database import MEMORY
from service.labels.store.store import (
    ABSENT,
    PRESENT,
    LabelStore,
    LessonRow,
    SetVersion,
    WriteResult,
    check_version,
)
from service.labels.stored_sets import StoredSets
from service.labels.words import Words

logger = logging.getLogger(__name__)


class PreparedLabels(NamedTuple):
    """Labels to learn: the texts' `embeddings` [m, E] of new ones, and the `queries` [L, K] of all.

    Both are None in a set without texts; `version` is the set's.
    """

    version: int
    embeddings: Embeddings | None = None
    queries: QueryArray | None = None
    words: Mapping[str, Words] = MappingProxyType({})  # of new labels


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
        learnt = {*definition.lessons}
        if not self._builder.encodes_text:
            rows = await self._call(self._store.read_lessons, definition.name, ())
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
            await self._builder.teach(made, definition.lessons, ())
        write = self._prepare_write(definition, embeddings)
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
        if definition.lessons or definition.calibration not in (None, old.calibration):
            raise errors.InvalidLabelSet(
                f"A calibration or examples cannot be added to {name}: import the file as another "
                "set, or replace this one with --replace"
            )
        new = self._builder.check(definition, {*old.lessons, *others}).without(old)
        new_kinds = {row.embedding is None for row in new.rows.values()}
        old_kinds = {row.embedding is None for row in old.rows.values()}
        has_no_texts = encodes_text and not entry.embeddings.shape[1]  # it learnt from photos alone
        if not new_kinds <= old_kinds or (new_kinds and has_no_texts):
            raise errors.InvalidLabelSet(
                f"The labels of {name} are of another kind (texts, embeddings or photos alone): "
                "register the new ones as another set"
            )
        joined = replace_fields(old, lessons={}, words={**old.words, **new.words})
        joined = joined.with_rows(old.rows | new.rows)
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
            raise errors.UnknownLabel(unknown, [name], [old.names])
        own = old.own_thresholds
        new = tuple(map(thresholds.get, old.names, own))
        calibration = calibration or old.own_calibration
        if (new, calibration) == (own, old.own_calibration):
            return old
        given = tuple(np.flatnonzero(old.own_embeddings).tolist())
        definition = Definition(name, old.names, old.prompts, new, given, calibration=calibration)
        made = await self._builder.make(definition, definition.embeddings, start=old.source.vectors)
        made = replace_fields(made, dictionary=old.dictionary)
        write = partial(self._store.calibrate, definition, SetVersion(version, old.digest or ""))
        return (await self._write_set(made, write))[0]

    async def prepare_labels(self, name: str, labels: Sequence[str]) -> PreparedLabels:
        """Encodes the texts of labels to learn, if the set has room for them.

        Raises `TextNotEncodable` for a new label of a set of texts, if the bundle encodes none.
        """
        await self.refresh()  # else a set that another process deleted would be made without texts
        known, encoders = self.by_name.get(name), self._builder.encoders
        names = {} if known is None else known.positions
        await self._call(self._store.check_room, name, len(names.keys() | {*labels}))
        missing = tuple(label for label in labels if label not in names)
        version = ABSENT if known is None else int(known.version)
        rows: dict[str, QueryArray] = {}
        if known is None:
            if encoders is None or not encoders.encodes_text:
                return PreparedLabels(version)
        elif known.queries is None:
            return PreparedLabels(version)
        elif missing and (encoders is None or not encoders.encodes_text):
            raise errors.TextNotEncodable(missing[0])
        else:
            rows = {label: known.queries[names[label]] for label in labels if label in names}
        embeddings = None
        if missing and encoders is not None:
            nothing = (None,) * len(missing)
            embeddings = await encoders.embed(Definition(name, missing, nothing, nothing))
            vectors = await encoders.project(embeddings, with_keys=False)
            rows |= zip(missing, vectors.queries, strict=True)
        return PreparedLabels(version, embeddings, np.stack([rows[label] for label in labels]))

    async def teach(
        self, name: str, prepared: PreparedLabels, lessons: Mapping[str, Lesson]
    ) -> LabelSet:
        """Writes a lesson of each label, in place of all that it had learnt and of its threshold.

        `prepared` are these labels, or more that the set has. Raises `LabelSetChanged` if the set
        has changed since.
        """
        definition, version = Definition(name, (), (), ()), ABSENT
        texts = np.zeros((0, 0), np.float32)
        with contextlib.suppress(errors.LabelSetNotFound):
            (definition, texts, version), _ = await self.read_definition(name)
        if version != prepared.version:
            raise errors.LabelSetChanged(name, str(version) if version else None)
        new = [label for label in lessons if label not in definition.rows]
        if prepared.embeddings is not None:
            texts = np.concatenate((texts, prepared.embeddings)) if version else prepared.embeddings
        else:
            texts = np.pad(texts, ((0, len(new)), (0, 0)))
        rows = {
            label: row._replace(threshold=None) if label in lessons else row
            for label, row in definition.rows.items()
        }
        joined = replace_fields(
            definition.with_rows(rows | dict.fromkeys(new, LabelRow())),
            lessons={
                **definition.lessons,
                **{label: {each.kind: each} for label, each in lessons.items()},
            },
            encoder=self._builder.photos.encoder,
            words={**prepared.words, **definition.words},
        )
        made = await self._builder.make(joined, texts)
        write = self._prepare_write(joined, texts)
        return (await self._write_set(made, partial(write, replace=True, if_version=version)))[0]

    async def learn(  # noqa: PLR0913 - options are keywords
        self,
        name: str,
        label: str,
        prepared: PreparedLabels,
        positive: Sequence[Example],
        negative: Sequence[Example],
        *,
        replace: bool = False,
        if_version: int | None = None,
    ) -> LearntLabel:
        """Adds examples as `LabelStore.learn`.

        Raises `LabelSetChanged` if another client deletes them at once.
        """
        if if_version is None and prepared.embeddings is None and prepared.queries is not None:
            if_version = PRESENT  # the set has the label, unless it is deleted meanwhile
        write = partial(
            self._store.learn,
            *(name, label, self._keys[Examples.kind]),
            partial(add_examples, positive=positive, negative=negative),
            embedding=prepared.embeddings,
            forget=tuple(self._kinds) if replace else (),
            if_version=if_version,
        )
        learnt, labels = await self._write(name, write)
        labels = labels or await self._load_one(name)
        if Examples.kind not in labels.lessons.get(label, {}):
            raise errors.LabelSetChanged(name, labels.version)
        repeated = len(positive) + len(negative) - learnt.added
        return LearntLabel(labels, learnt.created, learnt.added, repeated)

    async def delete_examples(
        self, name: str, label: str, if_version: int | None = None
    ) -> LabelSet:
        """Deletes all that a label has learnt; its text stays. Raises as `LabelStore` does."""
        write = partial(self._store.delete_lessons, name, label, if_version)
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
        words = (await self._read_dictionary(name, old)).words
        definition = Definition(name, old.names, old.prompts, thresholds, words=words)
        await self.register(definition, replace=version is not None, if_version=version)

    def _prepare_write(
        self, definition: Definition, embeddings: Embeddings
    ) -> Callable[..., WriteResult]:
        keys = {kind: key for key, kind in find_kinds(definition.encoder or "").items()}
        rows = list_contents(definition.lessons)
        lessons = [LessonRow(keys[kind], label, content) for label, kind, content in rows]
        write = partial(self._store.write, keys=[*keys.values()], lessons=lessons)
        return partial(write, definition, embeddings)

    async def _write_set(
        self, made: LabelSet, write: Callable[[], WriteResult]
    ) -> tuple[LabelSet, bool]:
        written, labels = await self._write(made.name, write, made)
        digest = written.digest or made.digest
        is_ours = labels and (labels.digest, labels.words) == (digest, made.words)
        if labels is None or not is_ours or int(labels.version) < written.version:
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
