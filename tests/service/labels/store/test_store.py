"""The store keeps acknowledged writes whole, on SQLite and on PostgreSQL."""

import dataclasses
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.bundle.card import Calibration
from service.errors import (
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
    TooManyLabelSets,
)
from service.labels.definition import Definition
from service.labels.store.database import open_database
from service.labels.store.store import PRESENT, LabelStore, Limits, WriteResult
from tests.support.label_store import run_sql
from tests.support.postgres import Postgres

SPACE = "a" * 64
LIMITS = Limits(sets=5, labels=20, labels_per_set=15)


def open_store(
    location: str, *, space: str = SPACE, limits: Limits = LIMITS, timeout_seconds: float = 20.0
) -> LabelStore:
    return LabelStore(open_database(location, timeout_seconds=timeout_seconds), space, limits)


def define(name: str, *labels: str) -> Definition:
    return Definition(name, labels, (None,) * len(labels), (0.5,) + (None,) * (len(labels) - 1))


def embed(definition: Definition) -> np.ndarray:
    return np.arange(len(definition.names) * 3, dtype=np.float32).reshape(-1, 3)


def find_versions(store: LabelStore) -> dict[str, int]:
    return {name: version for name, (version, _) in store.read_versions()[1].items()}


def write(
    store: LabelStore, name: str, *labels: str, replace: bool = True, if_version: int | None = None
) -> WriteResult:
    definition = define(name, *labels)
    return store.write(definition, embed(definition), replace=replace, if_version=if_version)


def put(store: LabelStore, name: str, *labels: str) -> int:
    return write(store, name, *labels).version


def check(store: LabelStore, name: str, *labels: str) -> int | None:
    return store.check(define(name, *labels), replace=True, if_version=None)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").make_database())
    return "memory" if request.param == "memory" else str(tmp_path / "deep" / "labels.db")


@pytest.fixture
def store(location: str) -> Iterator[LabelStore]:
    store = open_store(location)
    yield store
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


@pytest.fixture
def file_store(path: Path) -> Iterator[LabelStore]:
    store = open_store(str(path))
    yield store
    store.close()


def test_set_is_read_back_as_it_was_written(store: LabelStore) -> None:
    names, prompts = ("cat", "d\u00f6g"), (None, "a dog")
    own = np.ones((1, 3), np.float32)
    given = Definition("pets", names, prompts, (0.25, None), (0,), own)
    embeddings = np.array([[1, 1, 1], [0.1, -2, 1e-30]], np.float32)

    written = store.write(given, embeddings, replace=False)

    found = store.read("pets")
    assert found is not None
    assert (found.version, written.created) == (written.version, True)
    assert written.version > written.previous
    assert found.definition.digest == given.digest
    np.testing.assert_array_equal(found.embeddings, embeddings)


def test_calibration_is_read_back_as_it_was_written(store: LabelStore) -> None:
    own = Calibration(scale=0.7, shift=-1.25)
    given = dataclasses.replace(define("pets", "cat", "yak"), calibration=own)
    store.write(given, embed(given), replace=False)
    found = store.read("pets")
    assert found is not None
    assert found.definition.calibration == own
    assert found.definition.digest == given.digest


def test_every_write_raises_the_revision(store: LabelStore) -> None:
    start = store.read_mark().revision
    first = put(store, "pets", "cat")
    second = put(store, "cars", "van")
    third = put(store, "pets", "dog")
    assert [first, second, third] == [start + 1, start + 2, start + 3]
    assert store.read_mark().revision == start + 3
    assert find_versions(store) == {"pets": third, "cars": second}
    store.delete("cars")
    assert store.read_mark().revision == start + 4
    assert find_versions(store) == {"pets": third}


def test_same_set_again_changes_nothing(store: LabelStore) -> None:
    first = put(store, "pets", "cat")
    for replace in (False, True):
        assert write(store, "pets", "cat", replace=replace).version == first
        assert store.check(define("pets", "cat"), replace=replace, if_version=None) == first
    assert store.read_mark().revision == first


def test_conflicts_and_stale_versions_are_refused(store: LabelStore) -> None:
    version = put(store, "pets", "cat")
    with pytest.raises(LabelSetExists):
        write(store, "pets", "dog", replace=False)
    with pytest.raises(LabelSetChanged):
        write(store, "pets", "dog", if_version=version + 1)
    with pytest.raises(LabelSetChanged):
        store.delete("pets", if_version=version + 1)
    with pytest.raises(LabelSetNotFound):
        store.delete("none")
    with pytest.raises(LabelSetChanged):
        write(store, "none", "x", if_version=version)
    assert check(store, "pets", "cat") == version
    assert store.read("none") is None


def test_present_requires_a_set_in_any_version(store: LabelStore) -> None:
    for if_version in (PRESENT, 1):
        with pytest.raises(LabelSetChanged):
            write(store, "pets", "cat", if_version=if_version)
        with pytest.raises(LabelSetChanged):
            store.delete("pets", if_version=if_version)
    put(store, "pets", "cat")
    for labels in (("dog",), ("newt", "yak")):
        written = write(store, "pets", *labels, if_version=PRESENT)
        assert (written.version > written.previous, written.created) == (True, False)
    store.delete("pets", if_version=PRESENT)
    assert store.read("pets") is None


def test_limits_count_sets_labels_and_labels_of_one_set(store: LabelStore) -> None:
    for act in (check, put):
        with pytest.raises(InvalidLabelSet, match="at most 15 labels"):
            act(store, "pets", *"abcdefghijklmnop")
    assert check(store, "pets", *"abcdefghijklmno") is None
    put(store, "pets", *"abcdefghijklmno")
    for name in ("pets", "set1", "set2", "set3", "set4"):
        put(store, name, "a", "b")
    for act in (check, put):
        with pytest.raises(TooManyLabelSets):
            act(store, "sixth", "a")
        with pytest.raises(TooManyLabelSets):
            act(store, "pets", *"abcdefghijklm")
    assert check(store, "pets", *"abcdefghijkl") is None
    put(store, "pets", *"abcdefghijkl")


def test_limits_count_the_sets_of_all_spaces_once(location: str, store: LabelStore) -> None:
    if location == "memory":
        pytest.skip("a store in memory has one process")
    other = open_store(location, space="b" * 64)
    for name in ("set1", "set2", "set3"):
        put(other, name, "a", "b")
    for name in ("set1", "set4", "set5"):
        put(store, name, "a", "b")
    for act in (check, put):
        with pytest.raises(TooManyLabelSets, match="those of other bundles too"):
            act(store, "sixth", "a")
    put(store, "set2", "a")
    for name in ("set1", "set2"):
        store.delete(name)  # the other space still has them
    put(store, "sixth", "a")
    with pytest.raises(TooManyLabelSets):
        put(store, "seventh", *"abcdefghijklmn")
    put(store, "seventh", *"abcdefghijklm")
    other.close()


def test_spaces_do_not_see_each_other(location: str, store: LabelStore) -> None:
    if location == "memory":
        pytest.skip("a store in memory has one process")
    put(store, "pets", "cat")
    other = open_store(location, space="b" * 64)
    assert other.read_versions()[1] == {}
    assert other.read("pets") is None
    other.close()


def test_other_spaces_sets_are_listed_unless_they_are_here_or_were_deleted_here(
    location: str, store: LabelStore
) -> None:
    if location == "memory":
        pytest.skip("a store in memory has one process")
    others = [open_store(location, space=letter * 64) for letter in "bc"]
    for other in others:
        put(other, "pets", "cat")
    put(others[0], "cars", "van")
    put(store, "cars", "bus")
    assert store.list_others() == {"pets": "c" * 64}  # the newest
    assert others[1].list_others()["cars"] != "c" * 64
    found = store.read("cars", "b" * 64)
    assert found is not None
    assert found.definition.names == ("van",)
    put(store, "pets", "cat")
    for name in ("cars", "pets"):
        store.delete(name)
    assert store.list_others() == {}
    put(others[0], "cars", "lorry")
    assert store.list_others() == {"cars": "b" * 64}
    put(store, "cars", "bus")
    store.delete("cars")  # once more
    assert store.list_others() == {}
    for other in others:
        other.close()


def test_writers_at_the_same_time_each_get_a_version_of_their_own(location: str) -> None:
    if location == "memory":
        pytest.skip("a store in memory has one process")
    stores = [open_store(location, limits=Limits(99, 999, 9)) for _ in range(4)]

    def write(i: int) -> int:
        return put(stores[i % 4], f"set{i}", "a", f"{i}")

    with ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(write, range(20)))

    assert len(set(versions)) == 20
    found = find_versions(stores[0])
    assert {f"set{i}": version for i, version in enumerate(versions)} == found
    assert stores[0].read_mark().revision == max(versions)
    for store in stores:
        store.close()


def test_full_disk_raises_store_full_and_changes_nothing(file_store: LabelStore) -> None:
    version = put(file_store, "pets", "cat")
    large = define("large", "x"), np.ones((1, 100_000), np.float32)
    with file_store._database.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # at least the present size
    with pytest.raises(StoreFull):
        file_store.write(*large, replace=False)
    assert find_versions(file_store) == {"pets": version}
    assert file_store.read_mark().revision == version
    with file_store._database.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    file_store.write(*large, replace=False)


def test_file_that_is_not_a_database_is_unavailable(path: Path, file_store: LabelStore) -> None:
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(StoreUnavailable):
        file_store.read_mark()
    path.unlink()
    assert file_store.read_mark().revision == 0


def test_damaged_row_is_an_invalid_set(path: Path, file_store: LabelStore) -> None:
    put(file_store, "pets", "cat")
    run_sql(path, "UPDATE label_sets SET labels = '{'")
    with pytest.raises(InvalidLabelSet):
        file_store.read("pets")
    put(file_store, "pets", "dog")
    assert file_store.read("pets") is not None


def test_store_of_another_schema_is_refused(path: Path, file_store: LabelStore) -> None:
    put(file_store, "pets", "cat")
    run_sql(path, "UPDATE label_store SET schema_version = 99")
    again = open_store(str(path))
    with pytest.raises(StoreIncompatible, match=f"{re.escape(str(path))}: schema version 99"):
        again.read_mark()
    again.close()


def test_server_that_goes_and_comes_back_is_found_again(postgres: Postgres) -> None:
    store = open_store(postgres.url)
    version = put(store, "outage", "cat")
    before = store.read_mark()
    postgres.stop()
    with pytest.raises(StoreUnavailable):
        store.read_mark()
    with pytest.raises(StoreUnavailable):
        put(store, "outage", "dog")
    postgres.start()
    after = store.read_mark()
    assert after.revision == before.revision
    assert after != before, "it may have been restored from a backup"
    assert check(store, "outage", "cat") == version
    store.delete("outage")
    store.close()


def test_file_that_was_removed_takes_no_more_writes(path: Path, file_store: LabelStore) -> None:
    put(file_store, "pets", "cat")
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(StoreUnavailable):
        put(file_store, "lost", "cat")
    version = put(file_store, "zoo", "owl")
    fresh = open_store(str(path))
    assert find_versions(fresh) == {"zoo": version}
    fresh.close()


def test_restored_file_is_served(path: Path, file_store: LabelStore) -> None:
    backup = path.with_name("backup.db")
    kept = open_store(str(backup))
    version = put(kept, "kept", "owl")
    kept.close()
    put(file_store, "pets", "cat")
    backup.replace(path)  # as a person would: SQLite's other files stay
    assert find_versions(file_store) == {"kept": version}
    put(file_store, "zoo", "owl")
    file_store.close()
    again = open_store(str(path))
    assert set(find_versions(again)) == {"kept", "zoo"}
    again.close()
