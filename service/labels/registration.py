"""Registration: a definition becomes a durable label set that requests may name.

In: a `Definition` and what it may replace. Out: its snapshot, once the store has committed it.
Whatever can be refused is refused before anything is encoded. Next: `stored_sets.py`, which shows
the snapshot to requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from service.engine.heads import Embeddings, QueryArray
from service.errors import InvalidLabelSet, LabelSetNotFound
from service.labels.definition import Definition
from service.labels.encoding import Encoding
from service.labels.label_set import LabelSet
from service.labels.store.order import Order, check_version
from service.labels.store.store import LabelStore
from service.labels.stored_sets import StoredSets


class Registration:
    """Writes sets to one store; every method belongs to one event loop."""

    def __init__(
        self, encoding: Encoding, store: LabelStore, shown: StoredSets, labels_per_set: int
    ) -> None:
        """Takes the encoders, the store, its sets in this process, and the most labels of a set."""
        self._encoding = encoding
        self._store = store
        self._shown = shown
        self._labels_per_set = labels_per_set

    async def write(self, order: Order) -> tuple[LabelSet, bool]:
        """Registers a set, or replaces one; when this returns it is durable.

        Returns:
            The set, and whether there was none of its name.

        Raises:
            LabelSetError: the set cannot be registered.
            StoreError: it could not be kept.
            BusyError: too many encode labels.
            InferenceFailed: an encoder failed.
        """
        definition = order.definition
        if len(definition.names) > self._labels_per_set:
            raise InvalidLabelSet(f"A label set takes at most {self._labels_per_set} labels")
        self._encoding.check(definition)
        # Encoding may take long, so what the store would refuse is refused before.
        if (version := await self._shown.call(self._store.check, order)) is not None:
            return await self._find(definition, version), False
        embeddings = await self._encoding.embed(definition)
        queries = await self._encoding.project(embeddings)
        return await self._commit(order, embeddings, queries)

    async def set_thresholds(
        self, name: str, thresholds: Mapping[str, float], if_version: int | None
    ) -> LabelSet:
        """Gives labels of a set thresholds of their own; the others keep theirs.

        Raises:
            LabelSetError: there is no such set, or it is in another version.
            StoreError: it could not be kept.
        """
        stored = await self._shown.call(self._store.read, name)
        if stored is None:
            raise LabelSetNotFound(name)
        old = stored.definition
        check_version(name, (stored.version, old.digest), if_version)
        new = tuple(
            thresholds.get(label, own) for label, own in zip(old.names, old.thresholds, strict=True)
        )
        order = Order(replace(old, thresholds=new), replace=True, if_version=stored.version)
        queries = await self._encoding.project(stored.embeddings)
        labels, _ = await self._commit(order, stored.embeddings, queries)
        return labels

    async def delete(self, name: str, if_version: int | None) -> None:
        """Deletes a set; who holds its snapshot keeps it.

        Raises:
            LabelSetError: there is no such set, or it is in another version.
            StoreError: it could not be deleted.
        """
        await self._shown.delete(name, if_version)

    async def _commit(
        self, order: Order, embeddings: Embeddings, queries: QueryArray
    ) -> tuple[LabelSet, bool]:
        definition = order.definition

        def make(version: int) -> LabelSet:
            return self._encoding.make_set(definition, queries, str(version), "store")

        work = partial(self._store.write, order, embeddings)
        made, written = await self._shown.write(make, work)
        if made is not None:
            return made, written.created
        return await self._find(definition, written.version), False

    async def _find(self, definition: Definition, version: int) -> LabelSet:
        found = await self._shown.find_current(definition.name, (version, definition.digest))
        if found is None:  # deleted between two looks at the store
            raise LabelSetNotFound(definition.name)
        return found
