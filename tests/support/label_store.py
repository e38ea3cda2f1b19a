"""Definitions without embeddings, and a label store that fails on demand."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from service.errors import StoreUnavailable
from service.labels.builder import PhotoSpace
from service.labels.definition import Definition
from service.labels.sources.examples import Example
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore, Limits, SetVersion, StoreState
from service.labels.whitening import MIN_PHOTOS, fit_whitening
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE, WIDTH

LIMITS = Limits(sets=50, labels=8, labels_per_set=5)


class FlakyStore(LabelStore):
    """A store that fails while an attribute says so; `asked` is set at every read."""

    def __init__(self, location: str, space: str = SPACE.fingerprint) -> None:
        super().__init__(open_database(location, timeout_seconds=20), space, LIMITS)
        self.away = self.faulty = False
        self.asked = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def read_versions(self, name: str | None = None) -> tuple[StoreState, dict[str, SetVersion]]:
        self._answer()
        return super().read_versions(name)

    def list_others(self) -> dict[str, str]:
        self._answer()
        return super().list_others()

    def read_state(self) -> StoreState:
        self._answer()
        return super().read_state()

    def _answer(self) -> None:
        self.loop.call_soon_threadsafe(self.asked.set)
        if self.faulty:
            raise ZeroDivisionError
        if self.away:
            raise StoreUnavailable("away")


def define(name: str, *labels: str, **values: Any) -> Definition:
    return Definition(name, labels, (None,) * len(labels), (None,) * len(labels), **values)


def put(store: LabelStore, name: str, *labels: str, width: int = EMBEDDING_WIDTH) -> int:
    """Writes a set whose embeddings are ones; returns its version."""
    embeddings = np.ones((len(labels), width), np.float32)
    return store.write(define(name, *labels), embeddings, replace=True).version


def run_sql(path: Path, statement: str) -> None:
    """Runs a statement on a SQLite file."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def make_photos(width: int = WIDTH, encoder: str = "e" * 64) -> PhotoSpace:
    """Returns an encoder of photos with a background of random embeddings."""
    rows = np.random.default_rng(0).normal(0.5, 1, (MIN_PHOTOS, width)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return PhotoSpace(encoder, fit_whitening(rows))


def make_examples(
    count: int, seed: int = 0, *, width: int = WIDTH, spread: float = 3.0
) -> list[Example]:
    """Returns different examples of one kind: whitened embeddings around a random one."""
    random = np.random.default_rng(seed)
    rows = random.normal(0, 2, width) + spread * random.normal(0, 1, (count, width))
    return [Example(random.bytes(32), row) for row in rows.astype(np.float32)]
