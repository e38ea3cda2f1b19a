"""What any process writes is shown in every other; a store that is away takes nothing away."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.errors import (
    Draining,
    LabelSetNotFound,
    StartError,
    StoreUnavailable,
    VersionNotReached,
)
from service.labels.definition import Definition
from service.labels.encoding import Encoding, open_encoding
from service.labels.store.database import open_database
from service.labels.store.order import Kept, Order
from service.labels.store.store import LabelStore, Limits, Mark
from service.labels.stored_sets import StoredSets
from tests.support.postgres import Postgres
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE, random_queries

pytestmark = pytest.mark.anyio

SECONDS = 30.0


class FlakyStore(LabelStore):
    """A store that is away or faulty while it is told to be, and tells whenever it is asked."""

    def __init__(self, path: Path) -> None:
        database = open_database(str(path), patience_seconds=20)
        super().__init__(database, SPACE.fingerprint, Limits(sets=50, labels=500))
        self.away = self.faulty = False
        self.asked = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def read_versions(self) -> tuple[Mark, dict[str, Kept]]:
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
    embeddings = np.ones((len(labels), width), np.float32)
    return store.write(Order(define(name, *labels), replace=True), embeddings).version


@pytest.fixture
async def encoding(open_bundle: Bundle) -> AsyncIterator[Encoding]:
    encoding = open_encoding(open_bundle, threads=1, remembered=9, queue_size=9)
    assert encoding is not None
    yield encoding
    encoding.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


@pytest.fixture
async def other(path: Path) -> AsyncIterator[FlakyStore]:
    """The same store as another process has it."""
    store = FlakyStore(path)
    yield store
    store.close()


@asynccontextmanager
async def following(
    path: Path, encoding: Encoding, poll_seconds: float = 60.0, hidden: tuple[str, ...] = ()
) -> AsyncIterator[tuple[StoredSets, FlakyStore]]:
    store = FlakyStore(path)
    sets = StoredSets(store, encoding, poll_seconds, hidden)
    await sets.start()
    try:
        yield sets, store
    finally:
        await sets.stop()


async def wait_for(store: FlakyStore, condition: Callable[[], bool]) -> None:
    """Waits, from one look at the store to the next, until `condition` holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            store.asked.clear()
            await store.asked.wait()


async def test_what_another_process_writes_is_shown_by_the_next_look(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    first = put(other, "pets", "cat")
    async with following(path, encoding) as (sets, _):
        assert {n: s.version for n, s in sets.by_name.items()} == {"pets": str(first)}
        pinned = sets.by_name["pets"]
        put(other, "pets", "dog")
        put(other, "cars", "van")
        await sets.refresh()
        assert sets.by_name["pets"].names == ("dog",)
        other.delete("cars")
        await sets.refresh()
        assert set(sets.by_name) == {"pets"}
        assert pinned.names == ("cat",)


async def test_set_that_did_not_change_is_not_loaded_again(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    put(other, "pets", "cat")
    async with following(path, encoding) as (sets, _):
        before = sets.by_name["pets"]
        put(other, "cars", "van")
        await sets.refresh()
        assert sets.by_name["pets"] is before


async def test_store_is_followed(path: Path, encoding: Encoding, other: FlakyStore) -> None:
    async with following(path, encoding, poll_seconds=0.01) as (sets, store):
        put(other, "pets", "cat")
        await wait_for(store, lambda: "pets" in sets.by_name)


async def test_store_that_is_away_leaves_the_sets_and_is_told_once(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    async with following(path, encoding, poll_seconds=0.01) as (sets, store):
        store.away = True
        for _ in range(3):
            store.asked.clear()
            await asyncio.wait_for(store.asked.wait(), SECONDS)
        assert set(sets.by_name) == {"pets"}
        assert not sets.answers
        with pytest.raises(StoreUnavailable):
            await sets.refresh()
        put(other, "cars", "van")
        store.away = False
        await wait_for(store, lambda: "cars" in sets.by_name and sets.answers)
    told = [record.message for record in caplog.records if "label store is" in record.message]
    assert told == ["the label store is away: away", "the label store is back"]


async def test_database_that_hangs_is_away_until_it_goes_on(
    encoding: Encoding, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.labels.stored_sets._PATIENCE_SECONDS", 0.2)
    store = LabelStore(open_database(postgres.url), SPACE.fingerprint, Limits(sets=9, labels=9))
    sets = StoredSets(store, encoding, 60.0, ())
    await sets.start()
    async with asyncio.timeout(SECONDS):
        with postgres.hanging():
            for _ in range(2):  # on the connection that there was, then while connecting
                with pytest.raises(StoreUnavailable):
                    await sets.refresh()
        await sets.refresh()
        await sets.stop()


async def test_store_is_followed_through_a_fault_of_ours(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(path, encoding, poll_seconds=0.01) as (sets, store):
        store.faulty = True
        await wait_for(store, lambda: "looking at the label store failed" in caplog.text)
        put(other, "pets", "cat")
        store.faulty = False
        await wait_for(store, lambda: "pets" in sets.by_name)


def restore(path: Path, *sets: tuple[str, str]) -> None:
    """Puts a store of these sets, of one label each, in the place of the one that there is."""
    other = path.with_name("restored.db")
    store = LabelStore(open_database(str(other)), SPACE.fingerprint, Limits(sets=9, labels=9))
    for name, label in sets:
        put(store, name, label)
    store.close()
    other.replace(path)


async def test_store_that_went_back_is_followed_where_its_numbers_are_the_same(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    put(other, "cars", "van")
    put(other, "pets", "dog")
    async with following(path, encoding, poll_seconds=0.01) as (sets, store):
        known, revision = sets.by_name, sets.revision
        other.close()
        restore(path, ("cars", "van"), ("pets", "horse"))
        await wait_for(store, lambda: sets.by_name["pets"].names == ("horse",))
        assert sets.revision == revision
        assert sets.by_name["pets"].version == known["pets"].version
        assert sets.by_name["cars"] is known["cars"]


async def test_set_of_the_same_version_with_other_labels_is_not_the_current_one(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    version = put(other, "pets", "dog")
    async with following(path, encoding) as (sets, _):
        other.close()
        restore(path, ("pets", "horse"))
        current = await sets.find_current("pets", (version, define("pets", "horse").digest))
        assert current is not None
        assert current.names == ("horse",)


async def test_version_can_be_demanded(path: Path, encoding: Encoding, other: FlakyStore) -> None:
    async with following(path, encoding) as (sets, store):
        version = put(other, "pets", "cat")
        await sets.reach(version, ["pets"])
        assert sets.by_name["pets"].version == str(version)
        with pytest.raises(VersionNotReached):
            await sets.reach(version + 1, ["pets"])
        store.away = True
        await sets.reach(version, ["pets"])  # nobody has to be asked
        with pytest.raises(StoreUnavailable):  # which may have this version by now
            await sets.reach(version + 1, ["pets"])
        store.away = False
        with pytest.raises(VersionNotReached):
            await sets.reach(version + 1, ["pets"])


async def test_version_is_not_reached_while_a_named_set_is_not_there_yet(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    async with following(path, encoding, hidden=("everyday",)) as (sets, store):
        put(other, "cars", "van")
        embeddings = np.ones((1, EMBEDDING_WIDTH), np.float32)
        made, written = await sets.write(
            lambda version: encoding.make_set(
                define("pets", "cat"), random_queries(0, 1), str(version), "store"
            ),
            lambda: store.write(Order(define("pets", "cat"), replace=False), embeddings),
        )
        assert made is not None
        await sets.reach(written.version, ["pets", "everyday", "cars"])
        assert set(sets.by_name) == {"pets", "cars"}


async def test_sets_of_another_embedding_space_are_told_once(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    elsewhere = LabelStore(open_database(str(path)), "0" * 64, Limits(sets=9, labels=9))
    put(elsewhere, "cars", "van")
    elsewhere.close()
    caplog.set_level(logging.WARNING)
    async with following(path, encoding) as (sets, _):
        put(other, "more", "dog")
        await sets.refresh()
        assert set(sets.by_name) == {"pets", "more"}
    (told,) = [r.message for r in caplog.records if "embedding space" in r.message]
    assert told.startswith("1 label set(s) in the store")


async def test_damaged_set_costs_only_itself(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    put(other, "wide", "cat", width=EMBEDDING_WIDTH + 1)
    put(other, "torn", "cat", "dog")
    with sqlite3.connect(path) as connection:
        changed = """UPDATE label_sets SET labels = replace(labels, 'dog', 'dig')"""
        connection.execute(changed + " WHERE name = 'torn'")
    connection.close()
    async with following(path, encoding) as (sets, _):
        assert set(sets.by_name) == {"pets"}
        messages = " ".join(record.message for record in caplog.records)
        assert "wide" in messages
        assert "torn" in messages
        put(other, "torn", "yak")
        await sets.refresh()
        assert set(sets.by_name) == {"pets", "torn"}


async def test_set_that_is_hidden_is_told(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "everyday", "cat")
    caplog.set_level(logging.WARNING)
    async with following(path, encoding, hidden=("everyday",)) as (sets, _):
        await sets.refresh()
    assert [r.message for r in caplog.records if "hidden" in r.message] == [
        "label set everyday in the store is hidden by one of the same name that is not stored"
    ]


async def test_store_of_another_schema_stops_the_start(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    put(other, "pets", "cat")
    change_schema(path, 99)
    sets = StoredSets(FlakyStore(path), encoding, 60.0, ())
    with pytest.raises(StartError, match="schema version 99"):
        await sets.start()
    await sets.stop()


async def test_store_that_comes_up_with_another_schema_is_followed_until_it_fits(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    put(other, "pets", "cat")
    store = FlakyStore(path)
    store.away = True
    sets = StoredSets(store, encoding, 0.01, ())
    await sets.start()
    change_schema(path, 99)
    store.away = False
    for _ in range(3):
        store.asked.clear()
        await asyncio.wait_for(store.asked.wait(), SECONDS)
    with pytest.raises(StoreUnavailable):
        await sets.refresh()
    change_schema(path, 1)
    await wait_for(store, lambda: "pets" in sets.by_name)
    await sets.stop()


def change_schema(path: Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE label_store SET schema_version = {version}")
    connection.close()


async def test_deleting_leaves_the_snapshot_to_who_holds_it(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    put(other, "pets", "cat")
    async with following(path, encoding) as (sets, _):
        pinned = sets.by_name["pets"]
        await sets.delete("pets", None)
        assert "pets" not in sets.by_name
        assert pinned.names == ("cat",)
        with pytest.raises(LabelSetNotFound):
            await sets.delete("pets", None)


async def test_who_comes_after_the_stop_is_told_so(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, _):
        pass
    with pytest.raises(Draining):
        await sets.refresh()
