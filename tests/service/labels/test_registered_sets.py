"""The store's sets: written durably, followed in other processes, kept while it is unavailable."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service import errors
from service.bundle.card import Calibration
from service.engine.heads import Embeddings
from service.labels.builder import LabelSetBuilder
from service.labels.definition import Definition, LabelRow
from service.labels.encoders import LabelEncoders
from service.labels.files import pack_label_set, parse_label_set
from service.labels.label_set import LabelSet
from service.labels.registered_sets import LearntLabel, RegisteredSets
from service.labels.sources.examples import Example, Examples
from service.labels.store.database import open_database
from service.labels.store.store import ABSENT, LabelStore
from service.labels.words import Words
from tests.support.label_store import (
    LIMITS,
    FlakyStore,
    define,
    make_examples,
    make_photos,
    put,
    run_sql,
)
from tests.support.postgres import Postgres
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE

pytestmark = pytest.mark.anyio

SECONDS = 30.0
HIDDEN = "everyday"
PHOTOS = make_photos()
Start = Callable[..., AbstractAsyncContextManager[RegisteredSets]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


@pytest.fixture
async def store(path: Path) -> FlakyStore:
    return FlakyStore(str(path))


@pytest.fixture
async def other(path: Path) -> AsyncIterator[FlakyStore]:
    """The same store, in another process."""
    with closing(FlakyStore(str(path))) as store:
        yield store


@pytest.fixture
async def old(path: Path) -> AsyncIterator[FlakyStore]:
    """The same store, in a replica whose bundle has another embedding space."""
    with closing(FlakyStore(str(path), space="0" * 64)) as store:
        yield store


@pytest.fixture
def start(encoders: LabelEncoders) -> Start:
    """Returns a context of the sets of a store, which is hardly polled by default."""

    @asynccontextmanager
    async def start(store: LabelStore, poll_seconds: float = 60.0) -> AsyncIterator[RegisteredSets]:
        sets = RegisteredSets(store, LabelSetBuilder(encoders, PHOTOS), poll_seconds, [HIDDEN])
        try:
            await sets.start()
            yield sets
        finally:
            await sets.stop()

    return start


@pytest.fixture
async def sets(store: FlakyStore, start: Start) -> AsyncIterator[RegisteredSets]:
    """The sets of a store that was empty at the start and is not polled."""
    async with start(store) as sets:
        yield sets


@pytest.fixture
async def polled(store: FlakyStore, start: Start) -> AsyncIterator[RegisteredSets]:
    async with start(store, 0.01) as sets:
        yield sets


async def wait_for(store: FlakyStore, condition: Callable[[], bool]) -> None:
    """Waits, from one read of the store to the next, until `condition` is true."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await wait_for_read(store)


async def wait_for_read(store: FlakyStore) -> None:
    store.asked.clear()
    await asyncio.wait_for(store.asked.wait(), SECONDS)


async def test_write_of_another_process_is_loaded_by_the_next_refresh(
    store: FlakyStore, start: Start, other: FlakyStore
) -> None:
    first = put(other, "pets", "cat")
    async with start(store) as sets:
        assert {n: s.version for n, s in sets.by_name.items()} == {"pets": str(first)}
        pinned = sets.by_name["pets"]
        put(other, "cars", "van")
        await sets.refresh()
        assert sets.by_name["pets"] is pinned, "it did not change"
        put(other, "pets", "dog")
        await sets.refresh()
        assert sets.by_name["pets"].names == ("dog",)
        other.delete("cars")
        await sets.refresh()
        assert set(sets.by_name) == {"pets"}
        assert pinned.names == ("cat",)


async def test_unavailable_store_keeps_the_sets_and_is_logged_once(
    polled: RegisteredSets, store: FlakyStore, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    await wait_for(store, lambda: "pets" in polled.by_name)
    store.away = True
    for _ in range(3):
        await wait_for_read(store)
    assert set(polled.by_name) == {"pets"}
    assert polled.failure
    with pytest.raises(errors.StoreUnavailable):
        await polled.refresh()
    put(other, "cars", "van")
    store.away = False
    await wait_for(store, lambda: "cars" in polled.by_name and not polled.failure)
    logged = [message for message in caplog.messages if "label store is" in message]
    assert logged == ["the label store is unavailable: away", "the label store is back"]


async def test_write_is_reported_if_the_store_fails_after_it(
    sets: RegisteredSets, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(work: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **options: Any) -> Any:
            result, store.away = work(*args, **options), True
            return result

        return write

    monkeypatch.setattr(store, "write", failing(store.write))
    monkeypatch.setattr(store, "delete", failing(store.delete))
    for definition in (define("pets", "cat"), define("pets", "dog")):
        labels, created = await sets.register(definition, replace=True)
        assert created == ("pets" not in sets.by_name)
        assert sets.failure == "away"
        store.away = False
        await sets.refresh()
        assert (labels.names, labels.version) == (definition.names, sets.by_name["pets"].version)
    await sets.delete("pets")
    assert store.away
    assert not sets.by_name


async def test_hanging_database_is_unavailable_until_it_goes_on(
    start: Start, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.labels.stored_sets._TIMEOUT_SECONDS", 0.2)
    store = LabelStore(open_database(postgres.url), SPACE.fingerprint, LIMITS)
    async with asyncio.timeout(SECONDS), start(store) as sets:
        with postgres.hanging():
            for _ in range(2):  # on the connection that there was, then while connecting
                with pytest.raises(errors.StoreUnavailable):
                    await sets.refresh()
        sets._timeout_seconds = SECONDS  # a busy machine may need more than the time above
        await sets.refresh()


async def test_store_is_followed_after_an_unexpected_exception(
    polled: RegisteredSets, store: FlakyStore, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.faulty = True
    await wait_for(store, lambda: "polling the label store failed" in caplog.text)
    put(other, "pets", "cat")
    store.faulty = False
    await wait_for(store, lambda: "pets" in polled.by_name)


async def restore(path: Path, *sets: tuple[str, str]) -> None:
    """Replaces the store by one of these sets, of one label each."""
    backup = path.with_name("restored.db")
    with closing(FlakyStore(str(backup))) as store:
        for name, label in sets:
            put(store, name, label)
    backup.replace(path)


async def test_restored_store_is_followed_if_its_revision_is_the_same(
    path: Path, polled: RegisteredSets, store: FlakyStore, other: FlakyStore
) -> None:
    put(other, "cars", "van")
    put(other, "pets", "dog")
    await wait_for(store, lambda: len(polled.by_name) == 2)
    known, revision = polled.by_name, polled.revision
    other.close()
    await restore(path, ("cars", "van"), ("pets", "horse"))
    await wait_for(store, lambda: polled.by_name["pets"].names == ("horse",))
    assert polled.revision == revision
    assert polled.by_name["pets"].version == known["pets"].version
    assert polled.by_name["cars"].queries is known["cars"].queries


async def test_unchanged_write_does_not_hide_another_processs_write(
    other: FlakyStore, sets: RegisteredSets
) -> None:
    pets, _ = await sets.register(define("pets", "cat"))
    put(other, "cars", "van")
    await sets.register(define("pets", "cat"))
    await sets.reach(int(pets.version) + 1, ["cars"])
    assert "cars" in sets.by_name


async def test_reach_loads_the_version_or_raises(
    sets: RegisteredSets, store: FlakyStore, other: FlakyStore
) -> None:
    version = put(other, "pets", "cat")
    await sets.reach(version, ["pets"])
    assert sets.by_name["pets"].version == str(version)
    with pytest.raises(errors.VersionNotReached):
        await sets.reach(version + 1, ["pets"])
    store.away = True
    await sets.reach(version, ["pets"])  # known without the store
    with pytest.raises(errors.StoreUnavailable):  # the store may have it by now
        await sets.reach(version + 1, ["pets"])
    store.away = False
    put(other, "cars", "van")  # a named set that is not there yet
    made, _ = await sets.register(define("zoo", "yak"))
    await sets.reach(int(made.version), ["zoo", HIDDEN, "cars"])
    assert set(sets.by_name) == {"pets", "zoo", "cars"}


async def test_sets_of_another_embedding_space_are_encoded_again_at_the_start(
    store: FlakyStore, start: Start, old: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    prompted = Definition("cars", ("van", "bus"), ("a red van", None), (0.7, None))
    old.write(prompted, np.ones((2, 3), np.float32), replace=False)
    put(old, "pets", "cat", width=3)
    before = old.read_versions()[1]
    caplog.set_level(logging.INFO)
    async with start(store) as sets:
        assert set(sets.by_name) == {"cars", "pets"}
        cars = sets.by_name["cars"]
        assert (cars.names, cars.prompts) == (prompted.names, prompted.prompts)
        assert cars.thresholds[0] == 0.7
        assert await sets.register(prompted) == (cars, False)
        assert sets.reencoding_progress is None
        assert old.read_versions()[1] == before  # the old replica has its own
        # Encoded as if it were registered here.
        await sets.delete("cars")
        fresh, _ = await sets.register(prompted)
        np.testing.assert_array_equal(fresh.queries, cars.queries)
    logged = [message for message in caplog.messages if "encoding it again" in message]
    assert [line.partition(" again ")[2] for line in logged] == ["(1 of 2)", "(2 of 2)"]


async def test_deleted_set_stays_deleted_until_another_replica_writes_it_again(
    path: Path, start: Start, old: FlakyStore
) -> None:
    put(old, "pets", "cat", width=3)
    async with start(FlakyStore(str(path))) as sets:
        await sets.delete("pets")
    async with start(FlakyStore(str(path))) as sets:
        assert not sets.by_name
    assert put(old, "pets", "dog", width=3) == 4, "a version that no client has seen"
    async with start(FlakyStore(str(path))) as sets:
        assert sets.by_name["pets"].names == ("dog",)


async def test_write_before_the_start_loads_and_encodes_no_other_set(
    store: FlakyStore, encoders: LabelEncoders, other: FlakyStore, old: FlakyStore
) -> None:
    put(old, "pets", "cat")
    put(other, "cars", "van")
    sets = RegisteredSets(store, LabelSetBuilder(encoders, PHOTOS), 60.0, [])
    added, created = await sets.register(define("zoo", "panda"))
    assert (added.names, created, {*sets.by_name}) == (("panda",), True, {"zoo"})
    await sets.delete("zoo")
    assert not sets.by_name
    assert {*other.read_versions()[1]} == {"cars"}
    await sets.stop()


async def test_set_that_cannot_be_encoded_again_is_logged_and_costs_only_itself(
    store: FlakyStore,
    start: Start,
    old: FlakyStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = store.check

    def check_or_refuse(definition: Definition, **options: Any) -> int | None:
        if definition.name == "locked":
            raise errors.StoreReadOnly("read-only")
        return check(definition, **options)

    monkeypatch.setattr(store, "check", check_or_refuse)
    own = np.ones((1, 3), np.float32)
    old.write(define("own", "a", given=(0,), embeddings=own), own, replace=False)
    put(old, "long", "x" * 200, width=3)  # more tokens than this space's text encoder reads
    put(old, "locked", "yak", width=3)
    tuned = Definition("pets", ("cat",), (None,), (0.9,), calibration=Calibration(scale=2, shift=1))
    old.write(tuned, own, replace=False)
    caplog.set_level(logging.WARNING)
    async with start(store) as sets:
        assert set(sets.by_name) == {"pets"}
        pets = sets.by_name["pets"]
        assert (pets.own_calibration, pets.calibrated.any()) == (None, False)
    *refused, lost = caplog.messages
    assert lost == "label set pets has lost its calibration: calibrate it again"
    for name, logged in zip(("own", "long", "locked"), refused, strict=True):
        words = f"label set {name} of another embedding space cannot be encoded again"
        assert logged.startswith(words)


async def test_damaged_set_costs_only_itself(
    path: Path, sets: RegisteredSets, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, "pets", "cat")
    put(other, "wide", "cat", width=EMBEDDING_WIDTH + 1)
    put(other, "torn", "cat", "dog")
    put(other, "cut", "cat")
    run_sql(path, "UPDATE label_sets SET labels = replace(labels, 'dog', 'dig')")
    run_sql(path, "UPDATE label_sets SET labels = '{' WHERE name = 'cut'")
    await sets.refresh()
    assert set(sets.by_name) == {"pets"}
    for name in ("wide", "torn", "cut"):
        assert f"label set {name} of the store is invalid" in caplog.text
        put(other, name, "yak")
    await sets.refresh()
    assert set(sets.by_name) == {"pets", "wide", "torn", "cut"}


async def test_hidden_set_is_logged_once(
    sets: RegisteredSets, other: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(other, HIDDEN, "cat")
    for _ in range(2):
        await sets.refresh()
    hidden = [message for message in caplog.messages if "hidden" in message]
    assert hidden == ["label set everyday of the store is hidden by a read-only one"]


async def test_store_of_another_schema_stops_the_start(
    path: Path, store: FlakyStore, start: Start, other: FlakyStore
) -> None:
    put(other, "pets", "cat")
    run_sql(path, "UPDATE label_store SET schema_version = 99")
    with pytest.raises(errors.StartError, match=r"labels\.db: schema version 99"):
        async with start(store):
            pass


async def test_store_that_appears_with_another_schema_is_followed_until_it_fits(
    path: Path, store: FlakyStore, start: Start, old: FlakyStore
) -> None:
    put(old, "pets", "cat", width=3)  # encoded again when the store is back
    store.away = True
    async with start(store, 0.01) as sets:
        run_sql(path, "UPDATE label_store SET schema_version = 99")
        store.away = False
        for _ in range(3):
            await wait_for_read(store)
        with pytest.raises(errors.StoreUnavailable):
            await sets.refresh()
        run_sql(path, "UPDATE label_store SET schema_version = 1")
        await wait_for(store, lambda: "pets" in sets.by_name)


async def test_call_raises_draining_while_the_store_closes_and_afterwards(
    store: FlakyStore, encoders: LabelEncoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on = asyncio.Event(), threading.Event()
    close = store.close

    def close_slowly() -> None:
        store.loop.call_soon_threadsafe(closing.set)
        assert go_on.wait(SECONDS)
        close()

    monkeypatch.setattr(store, "close", close_slowly)
    sets = RegisteredSets(store, LabelSetBuilder(encoders, PHOTOS), 60.0, ())
    await sets.start()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(sets.stop())
        await closing.wait()
        with pytest.raises(errors.Draining):
            await sets.refresh()
        go_on.set()
    with pytest.raises(errors.Draining):
        await sets.refresh()


async def gather_writes(
    sets: RegisteredSets, *definitions: Definition, replace: bool, if_version: int | None = None
) -> tuple[list[tuple[LabelSet, bool]], list[BaseException]]:
    """Writes all at the same time; returns the results and the exceptions."""
    writes = (sets.register(each, replace=replace, if_version=if_version) for each in definitions)
    results = await asyncio.gather(*writes, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    return [result for result in results if not isinstance(result, BaseException)], failures


async def test_sets_that_are_written_at_the_same_time_are_not_encoded_again(
    sets: RegisteredSets, store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "read", None)
    made, failures = await gather_writes(sets, *[define(n, "cat") for n in "abcd"], replace=False)
    assert not failures
    assert [labels for labels, _ in made] == [sets.by_name[name] for name in "abcd"]


@pytest.mark.parametrize(
    ("replace", "if_version", "failure"),
    [
        (False, None, errors.LabelSetExists),
        (True, ABSENT, errors.LabelSetChanged),
        (True, 1, errors.LabelSetChanged),
    ],
)
async def test_one_of_different_sets_of_a_name_is_written_at_the_same_time(
    sets: RegisteredSets, replace: bool, if_version: int | None, failure: type[Exception]
) -> None:
    if if_version == 1:
        assert (await sets.register(define("pets", "dog")))[0].version == "1"
    definitions = [define("pets", f"cat {i}") for i in range(8)]
    made, failures = await gather_writes(sets, *definitions, replace=replace, if_version=if_version)
    assert made == [(sets.by_name["pets"], if_version != 1)]
    assert [type(each) for each in failures] == [failure] * 7


@pytest.mark.parametrize(
    ("labels", "failure"), [("abcd", errors.TooManyLabelSets), ("abcdef", errors.InvalidLabelSet)]
)
async def test_set_over_the_limits_is_refused_before_it_is_encoded(
    sets: RegisteredSets, monkeypatch: pytest.MonkeyPatch, labels: str, failure: type[Exception]
) -> None:
    await sets.register(define("full", *"vwxyz"))
    monkeypatch.delattr(LabelEncoders, "embed")
    with pytest.raises(failure):
        await sets.register(define("pets", *labels))


@pytest.mark.parametrize("name", ["cat", "dog"])  # of the other's label; `cat` differs in words
async def test_set_that_another_client_replaces_at_once_has_the_version_that_was_written(
    sets: RegisteredSets,
    store: FlakyStore,
    other: FlakyStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    write, words = store.write, {"cat": Words(("puss",))}

    def write_before_another(*args: Any, **options: Any) -> Any:
        written = write(*args, **options)
        put(other, "pets", name)
        return written

    monkeypatch.setattr(store, "write", write_before_another)
    labels, created = await sets.register(define("pets", "cat", words=words))
    assert (labels.names, labels.words, created) == (("cat",), words, True)
    assert int(labels.version) < int(sets.by_name["pets"].version)
    thresholds = await sets.calibrate("pets", {name: 0.9})
    assert thresholds.words == sets.by_name["pets"].words == {}


async def test_calibration_and_thresholds_are_set_apart(
    sets: RegisteredSets, other: FlakyStore
) -> None:
    own = Calibration(scale=0.5, shift=1.0)
    before, _ = await sets.register(define("pets", "cat", "dog"))
    await sets.calibrate("pets", {"dog": 0.9}, own)
    kept = await sets.calibrate("pets", {"dog": None, "cat": 0.3})
    assert (kept.own_calibration, kept.calibrated.tolist()) == (own, [True, False])
    assert kept.queries is before.queries, "encoded again"
    put(other, "pets", "cat", "yak")
    changed = await sets.calibrate("pets", {"yak": 0.9})
    assert (changed.names, len(changed.queries)) == (("cat", "yak"), 2)


async def learn(
    sets: RegisteredSets, label: str, positive: int = 2, seed: int = 0, **options: Any
) -> LearntLabel:
    prepared = await sets.prepare_labels("pets", [label])
    return await sets.learn("pets", label, prepared, make_examples(positive, seed), (), **options)


def count_examples(labels: LabelSet) -> dict[str, int]:
    return {name: some["examples"].count for name, some in labels.lessons.items()}


async def test_label_of_a_set_that_another_process_deleted_is_learnt_with_its_text(
    sets: RegisteredSets, store: FlakyStore
) -> None:
    await learn(sets, "cat")
    store.delete("pets")
    assert (await learn(sets, "cat")).labels.source.name == "zero_shot"
    prepared = await sets.prepare_labels("pets", ["cat"])
    store.delete("pets")
    with pytest.raises(errors.LabelSetChanged):
        await sets.learn("pets", "cat", prepared, make_examples(1), ())


async def test_follower_loads_examples_alone_and_projects_new_labels_only(
    sets: RegisteredSets, path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(FlakyStore(str(path))) as follower:
        own = np.full((1, EMBEDDING_WIDTH), 0.5, np.float32)
        await sets.register(define("pets", "cat", "dog", given=(1,), embeddings=own))
        await follower.refresh()
        before = follower.by_name["pets"]
        await learn(sets, "dog")
        await follower.refresh()
        after = follower.by_name["pets"]
        assert (after.queries is before.queries, count_examples(after)) == (True, {"dog": 2})
        rows = []
        project = LabelEncoders.project

        async def count_rows(self: LabelEncoders, embeddings: Embeddings, **options: bool) -> Any:
            rows.append(len(embeddings))
            return await project(self, embeddings, **options)

        monkeypatch.setattr(LabelEncoders, "project", count_rows)
        last = await learn(sets, "yak", seed=1)
        await follower.refresh()
        own_scale = Calibration(scale=2.0, shift=0.0)
        tuned = await sets.calibrate("pets", {"dog": 0.9}, own_scale)
        assert await sets.calibrate("pets", {"dog": 0.9}) is tuned, "written again"
        await follower.refresh()
        assert rows == [1, 1, 1]  # its text, then one row in each process
        grown = follower.by_name["pets"]
        assert (grown.version, grown.own_calibration) == (tuned.version, own_scale)
        assert grown.thresholds.tolist() == tuned.thresholds.tolist()
        assert grown.learnt.positions.tolist() == [1, 2]
        assert grown.lessons["dog"]["examples"] is after.lessons["dog"]["examples"], "read again"
        np.testing.assert_array_equal(grown.queries, last.labels.queries)
        await sets.delete_examples("pets", "dog")
        await follower.refresh()
        assert count_examples(follower.by_name["pets"]) == {"yak": 2}


async def test_write_keeps_examples_of_labels_that_stay(
    sets: RegisteredSets, other: FlakyStore
) -> None:
    for seed, label in enumerate(("cat", "dog")):
        await learn(sets, label, seed=seed)
    kept, _ = await sets.register(define("pets", "dog", "yak", "cat"), replace=True)
    assert count_examples(kept) == {"dog": 2, "cat": 2}
    calibrated = await sets.calibrate("pets", {"dog": 0.9}, Calibration(scale=2.0, shift=0.0))
    np.testing.assert_array_equal(calibrated.learnt.vectors, kept.learnt.vectors)
    await sets.register(define("pets", "dog"), replace=True)
    again, _ = await sets.register(define("pets", "dog", "cat"), replace=True)
    assert count_examples(again) == {"dog": 2}
    other.delete("pets")
    put(other, "pets", "dog", "cat")
    await sets.refresh()
    assert count_examples(sets.by_name["pets"]) == {}


async def test_examples_of_another_encoder_are_unused_and_deleted_too(
    sets: RegisteredSets, path: Path, encoders: LabelEncoders, caplog: pytest.LogCaptureFixture
) -> None:
    await learn(sets, "cat")
    builder = LabelSetBuilder(encoders, make_photos(encoder="f" * 64))
    other = RegisteredSets(FlakyStore(str(path)), builder, 60.0, ())
    await other.start()
    pets = other.by_name["pets"]
    assert (pets.learnt, pets.unused_lessons) == (None, {"cat"})
    assert "what 1 label(s) have learnt is not used" in caplog.text
    assert (await learn(other, "cat", 3)).labels.unused_lessons == set()
    await sets.refresh()
    assert count_examples(sets.by_name["pets"]) == {"cat": 2}
    assert (await other.delete_examples("pets", "cat")).lessons == {}
    await sets.refresh()
    assert sets.by_name["pets"].lessons == {}
    await other.stop()


async def test_damaged_examples_leave_the_set_and_the_labels_text(
    sets: RegisteredSets, path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    await learn(sets, "cat")
    await learn(sets, "dog", seed=1)
    run_sql(path, "UPDATE learnt_labels SET lesson = x'00' WHERE label = 'cat'")
    async with start(FlakyStore(str(path))) as follower:
        pets = follower.by_name["pets"]
        assert (count_examples(pets), pets.unused_lessons) == ({"dog": 2}, {"cat"})
        assert "examples of a label are damaged" in caplog.text
        with pytest.raises(errors.InvalidLabelSet, match="damaged"):
            await learn(follower, "cat")
        again = await learn(follower, "cat", replace=True)
        assert count_examples(again.labels) == {"cat": 2, "dog": 2}


async def test_set_without_texts_learns_and_is_written_if_all_labels_have_learnt() -> None:
    sets = RegisteredSets(
        FlakyStore("memory", space="examples"), LabelSetBuilder(None, PHOTOS), 60.0, ()
    )
    await sets.start()
    learnt = [await learn(sets, label, seed=i) for i, label in enumerate(("cat", "dog"))]
    pets = learnt[-1].labels
    assert (pets.source.name, pets.queries, pets.activation) == ("examples", None, "sigmoid")
    assert pets.thresholds.tolist() == [0.5, 0.5]
    tuned = Definition("pets", ("dog", "cat"), (None,) * 2, (0.2, None))
    written, _ = await sets.register(tuned, replace=True)
    assert (written.thresholds.tolist(), [*written.lessons]) == ([0.2, 0.5], ["dog", "cat"])
    assert (await sets.calibrate("pets", {"cat": 0.7})).thresholds.tolist() == [0.2, 0.7]
    with pytest.raises(errors.NoOpenHead):
        await sets.register(define("pets", "dog", "yak"), replace=True)
    assert (await sets.add(define("pets", "cat").with_rows({"cat": LabelRow(None, 0.7)})))[1] == 0
    with pytest.raises(errors.NoOpenHead):
        await sets.add(define("pets", "yak"))
    bare = await sets.delete_examples("pets", "dog")
    assert (bare.names, [*bare.lessons]) == (("dog", "cat"), ["cat"])
    await sets.stop()


async def test_added_labels_alone_are_encoded_and_all_else_stays(
    sets: RegisteredSets, encoders: LabelEncoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sets.add(define("pets", "cat", "dog"))
    await learn(sets, "cat")
    before = await sets.calibrate("pets", {"dog": 0.9}, Calibration(scale=2.0, shift=0.5))
    encoded: list[str] = []
    encode = encoders.encode_texts

    async def record(texts: Sequence[str]) -> Embeddings:
        encoded.extend(texts)
        return await encode(texts)

    monkeypatch.setattr(encoders, "encode_texts", record)
    labels, added = await sets.add(define("pets", "yak", "cat"))
    assert (added, labels.names, len(encoded)) == (1, ("cat", "dog", "yak"), 1)
    assert labels.own_calibration == before.own_calibration
    assert labels.thresholds.tolist()[:2] == before.thresholds.tolist()
    assert count_examples(labels) == {"cat": 2}
    assert labels.queries is not None
    assert before.queries is not None
    np.testing.assert_allclose(labels.queries[:2], before.queries, atol=1e-5)
    assert int(labels.version) > int(before.version)


async def test_labels_that_two_clients_add_at_once_are_not_lost(sets: RegisteredSets) -> None:
    await sets.register(define("pets", "cat"))
    adds = [sets.add(define("pets", label)) for label in ("dog", "yak")]
    results = await asyncio.gather(*adds, return_exceptions=True)
    refused = [each for each in results if isinstance(each, errors.LabelSetChanged)]
    assert len(refused) == 1, results
    labels, _ = await sets.add(define("pets", "dog", "yak"))
    assert {*labels.names} == {"cat", "dog", "yak"}


async def test_labels_are_added_to_a_set_that_only_another_space_has(
    sets: RegisteredSets, old: FlakyStore
) -> None:
    put(old, "pets", "cat", width=3)
    labels, added = await sets.add(define("pets", "dog"))
    assert (labels.names, added) == (("cat", "dog"), 1)


async def test_exported_set_is_imported_with_its_examples(
    sets: RegisteredSets, start: Start, tmp_path: Path
) -> None:
    await sets.register(define("pets", "cat", "dog"))
    await sets.calibrate("pets", {"dog": 0.9})
    pets = (await learn(sets, "cat")).labels
    entry, _ = await sets.read_definition("pets")
    packed = pack_label_set(entry.definition, entry.embeddings)
    found = parse_label_set(packed, ".npz", "pets")
    async with start(FlakyStore(str(tmp_path / "other.db"))) as others:
        made, created = await others.register(found)
        assert (created, made.digest, count_examples(made)) == (True, pets.digest, {"cat": 2})
        await learn(others, "dog")
        again, _ = await others.register(found, replace=True)
        assert count_examples(again) == {"cat": 2}
        examples = Examples.empty(3).add([Example(b"x" * 32, np.ones(3, np.float32))])
        wrong = define(
            "wide", "cat", lessons={"cat": {"examples": examples}}, encoder=PHOTOS.encoder
        )
        with pytest.raises(errors.InvalidLabelSet, match="another width"):
            await others.register(wrong)
        assert "wide" not in others.by_name


async def test_successor_has_each_write_before_it_is_answered(
    store: FlakyStore, start: Start, other: FlakyStore
) -> None:
    async with start(store) as sets, start(other) as successor:
        await sets.register(define("before", "a"))
        await sets.hand_over(successor)
        assert "before" in successor.by_name
        await sets.register(define("pets", "cat"))
        assert successor.by_name["pets"].names == ("cat",)
        await sets.delete("before")
        assert successor.by_name.keys() == {"pets"}
        other.away = True
        await sets.delete("pets")  # a write does not fail because of it


async def test_labels_changed_in_another_space_are_encoded_again_but_thresholds_are_not(
    path: Path, store: FlakyStore, start: Start, old: FlakyStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(old, "pets", "cat", width=3)
    put(old, "cars", "van", width=3)
    async with start(store) as sets, start(FlakyStore(str(path))) as successor:
        tuned = await sets.calibrate("cars", {"van": 0.7})
        old.write(define("pets", "dog"), np.ones((1, 3), np.float32), replace=True)
        cars = Definition("cars", ("van",), (None,), (0.2,))
        old.write(cars, np.ones((1, 3), np.float32), replace=True)
        caplog.set_level(logging.INFO)
        await sets.hand_over(successor)
        assert successor.by_name["pets"].names == ("dog",)
        assert successor.by_name["cars"].thresholds.tolist() == tuned.thresholds.tolist()
    logged = [line for line in caplog.messages if "encoding it again" in line]
    assert len(logged) == 1
    assert old.list_others().keys() == {"pets"}
