"""Definitions without embeddings, and a label store that fails on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from service.engine.heads import Embeddings
from service.errors import StoreFull, StoreUnavailable
from service.labels.definition import Definition
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore, Limits, Mark, Stored, Written
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE

LIMITS = Limits(sets=50, labels=8, labels_per_set=5)


class FlakyStore(LabelStore):
    """A store that fails while an attribute says so; `asked` is set at every read."""

    def __init__(self, location: str, space: str = SPACE.fingerprint) -> None:
        super().__init__(open_database(location, timeout_seconds=20), space, LIMITS)
        self.away = self.faulty = self.full = False
        self.asked = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def write(self, definition: Definition, embeddings: Embeddings, **options: Any) -> Written:
        if self.full:
            raise StoreFull("no space")
        return super().write(definition, embeddings, **options)

    def read_versions(self) -> tuple[Mark, dict[str, Stored]]:
        self._answer()
        return super().read_versions()

    def read_mark(self) -> Mark:
        self._answer()
        return super().read_mark()

    def _answer(self) -> None:
        self.loop.call_soon_threadsafe(self.asked.set)
        if self.faulty:
            raise ZeroDivisionError
        if self.away:
            raise StoreUnavailable("away")


def define(name: str, *labels: str) -> Definition:
    return Definition(name, labels, (None,) * len(labels), (None,) * len(labels))


def put(store: LabelStore, name: str, *labels: str, width: int = EMBEDDING_WIDTH) -> int:
    """Writes a set whose embeddings are ones; returns its version."""
    embeddings = np.ones((len(labels), width), np.float32)
    return store.write(define(name, *labels), embeddings, replace=True).version
