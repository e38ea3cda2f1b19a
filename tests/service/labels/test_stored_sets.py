"""The store's sets: written durably, followed in other processes, kept while it is unavailable."""

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
from service.engine.heads import Embeddings
from service.errors import (
    Draining,
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StartError,
    StoreFull,
    StoreUnavailable,
    TooManyLabelSets,
    VersionNotReached,
)
from service.labels.definition import Definition
from service.labels.encoding import Encoding, open_encoding
from service.labels.label_set import LabelSet
from service.labels.store.database import open_database
from service.labels.store.store import ABSENT, LabelStore, Limits, Mark, Stored, Written
from service.labels.stored_sets import StoredSets
from tests.support.postgres import Postgres
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE

pytestmark = pytest.mark.anyio

SECONDS = 30.0
LIMITS = Limits(sets=50, labels=8, labels_per_set=5)


class FlakyStore(LabelStore):
    """A store that fails while an attribute says so; `asked` is set at every read."""

    def __init__(self, path: Path) -> None:
        database = open_database(str(path), timeout_seconds=20)
        super().__init__(database, SPACE.fingerprint, LIMITS)
        self.away = self.faulty = self.full = False
        self.asked = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def write(
        self,
        definition: Definition,
        embeddings: Embeddings,
        *,
        replace: bool,
        if_version: int | None = None,
    ) -> Written:
        if self.full:
            raise StoreFull("no space")
        return super().write(definition, embeddings, replace=replace, if_version=if_version)

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
    embeddings = np.ones((len(labels), width), np.float32)
    return store.write(define(name, *labels), embeddings, replace=True).version


@pytest.fixture
async def encoding(open_bundle: Bundle) -> AsyncIterator[Encoding]:
    encoding = open_encoding(open_bundle, threads=1, cache_size=9, queue_size=9)
    assert encoding is not None
    yield encoding
    encoding.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


@pytest.fixture
async def other(path: Path) -> AsyncIterator[FlakyStore]:
    """The same store, in another process."""
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
    """Waits, from one read of the store to the next, until `condition` is true."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            store.asked.clear()
            await store.asked.wait()


async def test_write_of_another_process_is_loaded_by_the_next_refresh(
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


async def test_unavailable_store_keeps_the_sets_and_is_logged_once(
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
    logged = [record.message for record in caplog.records if "label store is" in record.message]
    assert logged == ["the label store is unavailable: away", "the label store is back"]


async def test_hanging_database_is_unavailable_until_it_goes_on(
    encoding: Encoding, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.labels.stored_sets._TIMEOUT_SECONDS", 0.2)
    store = LabelStore(open_database(postgres.url), SPACE.fingerprint, LIMITS)
    sets = StoredSets(store, encoding, 60.0, ())
    await sets.start()
    async with asyncio.timeout(SECONDS):
        with postgres.hanging():
            for _ in range(2):  # on the connection that there was, then while connecting
                with pytest.raises(StoreUnavailable):
                    await sets.refresh()
        await sets.refresh()
        await sets.stop()


async def test_store_is_followed_after_an_unexpected_exception(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(path, encoding, poll_seconds=0.01) as (sets, store):
        store.faulty = True
        await wait_for(store, lambda: "polling the label store failed" in caplog.text)
        put(other, "pets", "cat")
        store.faulty = False
        await wait_for(store, lambda: "pets" in sets.by_name)


def restore(path: Path, *sets: tuple[str, str]) -> None:
    """Replaces the store by one of these sets, of one label each."""
    other = path.with_name("restored.db")
    store = LabelStore(open_database(str(other)), SPACE.fingerprint, LIMITS)
    for name, label in sets:
        put(store, name, label)
    store.close()
    other.replace(path)


async def test_restored_store_is_followed_if_its_revision_is_the_same(
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
        current, created = await sets.write(define("pets", "horse"), replace=False)
        assert (current.names, current.version, created) == (("horse",), str(version), False)


async def test_reach_loads_the_version_or_raises(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    async with following(path, encoding) as (sets, store):
        version = put(other, "pets", "cat")
        await sets.reach(version, ["pets"])
        assert sets.by_name["pets"].version == str(version)
        with pytest.raises(VersionNotReached):
            await sets.reach(version + 1, ["pets"])
        store.away = True
        await sets.reach(version, ["pets"])  # known without the store
        with pytest.raises(StoreUnavailable):  # the store may have it by now
            await sets.reach(version + 1, ["pets"])
        store.away = False
        with pytest.raises(VersionNotReached):
            await sets.reach(version + 1, ["pets"])


async def test_version_is_not_reached_while_a_named_set_is_not_there_yet(
    path: Path, encoding: Encoding, other: FlakyStore
) -> None:
    async with following(path, encoding, hidden=("everyday",)) as (sets, _):
        put(other, "cars", "van")
        made, _ = await sets.write(define("pets", "cat"), replace=False)
        await sets.reach(int(made.version), ["pets", "everyday", "cars"])
        assert set(sets.by_name) == {"pets", "cars"}


async def test_sets_of_another_embedding_space_are_logged_once(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    elsewhere = LabelStore(open_database(str(path)), "0" * 64, LIMITS)
    put(elsewhere, "cars", "van")
    elsewhere.close()
    caplog.set_level(logging.WARNING)
    async with following(path, encoding) as (sets, _):
        put(other, "more", "dog")
        await sets.refresh()
        assert set(sets.by_name) == {"pets", "more"}
    (logged,) = [r.message for r in caplog.records if "embedding space" in r.message]
    assert logged.startswith("1 label set(s) of the store")


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


async def test_hidden_set_is_logged(
    path: Path, encoding: Encoding, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "everyday", "cat")
    caplog.set_level(logging.WARNING)
    async with following(path, encoding, hidden=("everyday",)) as (sets, _):
        await sets.refresh()
    assert [r.message for r in caplog.records if "hidden" in r.message] == [
        "label set everyday of the store is hidden by a read-only one"
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


async def test_store_that_appears_with_another_schema_is_followed_until_it_fits(
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


async def test_deleted_set_stays_with_requests_that_pinned_it(
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


async def test_calls_after_stop_raise_draining(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, _):
        pass
    with pytest.raises(Draining):
        await sets.refresh()


async def test_written_set_is_shown_and_stored(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, store):
        labels, created = await sets.write(define("pets", "cat", "dog"), replace=False)
        assert created
        assert sets.by_name["pets"] is labels
        assert labels.queries is not None
        assert len(labels.queries) == 2
        stored = store.read("pets")
        assert stored is not None
        assert (str(stored.version), stored.definition.names) == (labels.version, ("cat", "dog"))


async def gather_writes(
    sets: StoredSets, *definitions: Definition, replace: bool, if_version: int | None = None
) -> tuple[list[tuple[LabelSet, bool]], list[BaseException]]:
    """Writes all at the same time; returns the results and the exceptions."""
    writes = (sets.write(each, replace=replace, if_version=if_version) for each in definitions)
    results = await asyncio.gather(*writes, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    return [result for result in results if not isinstance(result, BaseException)], failures


async def test_same_set_at_the_same_time_is_made_once(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, _):
        made, failures = await gather_writes(sets, *[define("pets", "cat")] * 8, replace=False)
        assert not failures
        assert sorted(created for _, created in made) == [False] * 7 + [True]
        assert len({labels.version for labels, _ in made}) == 1


@pytest.mark.parametrize(
    ("replace", "if_version", "failure"),
    [(False, None, LabelSetExists), (True, ABSENT, LabelSetChanged)],
)
async def test_one_of_different_sets_of_a_name_is_made_at_the_same_time(
    path: Path, encoding: Encoding, replace: bool, if_version: int | None, failure: type[Exception]
) -> None:
    async with following(path, encoding) as (sets, _):
        definitions = [define("pets", f"cat {i}") for i in range(8)]
        made, failures = await gather_writes(
            sets, *definitions, replace=replace, if_version=if_version
        )
        ((labels, created),) = made
        assert created
        assert sets.by_name["pets"] is labels
        assert [type(each) for each in failures] == [failure] * 7


async def test_lost_update_is_refused(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, _):
        version = int((await sets.write(define("pets", "cat"), replace=False))[0].version)
        definitions = [define("pets", f"dog {i}") for i in range(4)]
        made, failures = await gather_writes(sets, *definitions, replace=True, if_version=version)
        assert [type(each) for each in failures] == [LabelSetChanged] * 3
        assert len(made) == 1
        assert int(sets.by_name["pets"].version) == version + 1


async def test_full_store_changes_nothing(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, store):
        before, _ = await sets.write(define("pets", "cat"), replace=False)
        store.full = True
        with pytest.raises(StoreFull):
            await sets.write(define("pets", "dog"), replace=True)
        assert sets.by_name["pets"] is before
        store.full = False
        await sets.write(define("pets", "dog"), replace=True)
        assert sets.by_name["pets"].names == ("dog",)


@pytest.mark.parametrize(
    ("labels", "failure"), [("abcd", TooManyLabelSets), ("abcdef", InvalidLabelSet)]
)
async def test_set_over_the_limits_is_refused_before_it_is_encoded(
    path: Path,
    encoding: Encoding,
    monkeypatch: pytest.MonkeyPatch,
    labels: str,
    failure: type[Exception],
) -> None:
    async with following(path, encoding) as (sets, _):
        await sets.write(define("full", *"vwxyz"), replace=False)
        encoded: list[Definition] = []
        embed = encoding.embed

        async def note_and_embed(definition: Definition) -> Embeddings:
            encoded.append(definition)
            return await embed(definition)

        monkeypatch.setattr(encoding, "embed", note_and_embed)
        with pytest.raises(failure):
            await sets.write(define("pets", *labels), replace=False)
        assert not encoded
        assert (await sets.write(define("pets", *"abc"), replace=False))[1]
        assert len(encoded) == 1


async def test_thresholds_are_set_for_the_named_labels(path: Path, encoding: Encoding) -> None:
    async with following(path, encoding) as (sets, _):
        before, _ = await sets.write(define("pets", "cat", "dog"), replace=False)
        first = await sets.set_thresholds("pets", {"dog": 0.9, "other": 0.1}, None)
        second = await sets.set_thresholds("pets", {"cat": 0.2}, int(first.version))
        assert first.calibrated.tolist() == [False, True]
        assert second.thresholds.tolist() == [0.2, 0.9]
        assert int(before.version) < int(first.version) < int(second.version)
        assert sets.by_name["pets"] is second
        with pytest.raises(LabelSetNotFound):
            await sets.set_thresholds("none", {"cat": 0.2}, None)


async def test_thresholds_are_refused_if_the_version_has_changed(
    path: Path, encoding: Encoding
) -> None:
    async with following(path, encoding) as (sets, _):
        scored, _ = await sets.write(define("pets", "cat"), replace=False)
        other, _ = await sets.write(define("pets", "cat", "dog"), replace=True)
        with pytest.raises(LabelSetChanged):
            await sets.set_thresholds("pets", {"cat": 0.9}, int(scored.version))
        assert sets.by_name["pets"] is other
        changed = await sets.set_thresholds("pets", {"cat": 0.9}, int(other.version))
        assert changed.calibrated.tolist() == [True, False]
