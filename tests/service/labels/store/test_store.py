"""The store keeps acknowledged writes whole, on SQLite and on PostgreSQL."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service import errors
from service.bundle.card import Calibration
from service.labels.definition import Definition
from service.labels.sources.examples import Examples, add_examples
from service.labels.store.database import open_database
from service.labels.store.store import PRESENT, LabelStore, Limits, WriteResult
from service.labels.words import Words, pack_words
from tests.support.label_store import define, make_examples, run_sql
from tests.support.postgres import Postgres

SPACE = "a" * 64
LIMITS = Limits(sets=5, labels=20, labels_per_set=15)


def open_store(location: str, *, space: str = SPACE, limits: Limits = LIMITS) -> LabelStore:
    return LabelStore(open_database(location, timeout_seconds=20.0), space, limits)


def find_versions(store: LabelStore) -> dict[str, int]:
    return {name: version for name, (version, _) in store.read_versions()[1].items()}


def write(
    store: LabelStore,
    name: str,
    *labels: str,
    replace: bool = True,
    if_version: int | None = None,
    **values: Any,
) -> WriteResult:
    embeddings, definition = np.ones((len(labels), 3), np.float32), define(name, *labels, **values)
    return store.write(definition, embeddings, replace=replace, if_version=if_version)


def put(store: LabelStore, name: str, *labels: str, **values: Any) -> int:
    return write(store, name, *labels, **values).version


def check(store: LabelStore, name: str, *labels: str, replace: bool = True) -> int | None:
    return store.check(define(name, *labels), replace=replace, if_version=None)


def run_in_database(store: LabelStore, *statements: str) -> None:
    with store.database.connect(writing=True) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres").make_database())
    if request.param == "pooled":
        return str(request.getfixturevalue("pooled"))
    return "memory" if request.param == "memory" else str(tmp_path / "deep" / "labels.db")


shared = pytest.mark.parametrize("location", ["sqlite", "postgres", "pooled"], indirect=True)


@pytest.fixture
def store(location: str) -> Iterator[LabelStore]:
    with closing(open_store(location)) as store:
        yield store


@pytest.fixture
def others(location: str) -> Iterator[list[LabelStore]]:
    """The stores of two other embedding spaces, `bbb...` and `ccc...`."""
    stores = [open_store(location, space=letter * 64) for letter in "bc"]
    yield stores
    for other in stores:
        other.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.db"


@pytest.fixture
def file_store(path: Path) -> Iterator[LabelStore]:
    with closing(open_store(str(path))) as store:
        yield store


def test_set_is_read_back_as_it_was_written(store: LabelStore) -> None:
    given = Definition(
        name="pets",
        names=("cat", "d\u00f6g"),
        prompts=(None, "a dog"),
        thresholds=(0.25, None),
        given=(0,),
        embeddings=np.ones((1, 3), np.float32),
        calibration=Calibration(scale=0.7, shift=-1.25),
    )
    embeddings = np.array([[1, 1, 1], [0.1, -2, 1e-30]], np.float32)

    written = store.write(given, embeddings, replace=False)

    found = store.read("pets")
    assert (found.version, written.created) == (written.version, True)
    assert found.definition.calibration == given.calibration
    assert found.definition.digest == given.digest
    np.testing.assert_array_equal(found.embeddings, embeddings)


def test_every_write_raises_the_revision(store: LabelStore) -> None:
    start = store.read_state().revision
    versions = [put(store, *each) for each in (("pets", "cat"), ("cars", "van"), ("pets", "dog"))]
    assert versions == [start + 1, start + 2, start + 3]
    assert store.read_state().revision == start + 3
    assert find_versions(store) == {"pets": start + 3, "cars": start + 2}
    store.delete("cars")
    assert store.read_state().revision == start + 4
    assert find_versions(store) == {"pets": start + 3}
    assert put(store, "cars", "van") == start + 5


def test_same_set_again_changes_nothing(store: LabelStore) -> None:
    first = put(store, "pets", "cat")
    for replace in (False, True):
        assert write(store, "pets", "cat", replace=replace).version == first
        assert check(store, "pets", "cat", replace=replace) == first
    assert store.read_state().revision == first


def test_conflicts_and_stale_versions_are_refused(store: LabelStore) -> None:
    for if_version in (PRESENT, 1):
        with pytest.raises(errors.LabelSetChanged):
            write(store, "pets", "cat", if_version=if_version)
        with pytest.raises(errors.LabelSetChanged):
            store.delete("pets", if_version=if_version)
    version = put(store, "pets", "cat")
    with pytest.raises(errors.LabelSetExists):
        write(store, "pets", "dog", replace=False)
    with pytest.raises(errors.LabelSetChanged):
        write(store, "pets", "dog", if_version=version + 1)
    with pytest.raises(errors.LabelSetChanged):
        store.delete("pets", if_version=version + 1)
    with pytest.raises(errors.LabelSetNotFound):
        store.delete("none")
    assert check(store, "pets", "cat") == version
    assert store.read("none") is None
    written = write(store, "pets", "newt", "yak", if_version=PRESENT)
    assert (written.version, written.created) == (version + 1, False)
    store.delete("pets", if_version=PRESENT)
    assert store.read("pets") is None


def test_limits_count_sets_labels_and_labels_of_one_set(store: LabelStore) -> None:
    for act in (check, put):
        with pytest.raises(errors.InvalidLabelSet, match="at most 15 labels"):
            act(store, "pets", *"abcdefghijklmnop")
    assert check(store, "pets", *"abcdefghijklmno") is None
    put(store, "pets", *"abcdefghijklmno")
    for name in ("pets", "set1", "set2", "set3", "set4"):
        put(store, name, "a", "b")
    for act in (check, put):
        with pytest.raises(errors.TooManyLabelSets):
            act(store, "sixth", "a")
        with pytest.raises(errors.TooManyLabelSets):
            act(store, "pets", *"abcdefghijklm")
    assert check(store, "pets", *"abcdefghijkl") is None
    put(store, "pets", *"abcdefghijkl")


@shared
def test_limits_count_the_sets_of_all_spaces_once(
    store: LabelStore, others: list[LabelStore]
) -> None:
    for name in ("set1", "set2", "set3"):
        put(others[0], name, "a", "b")
    for name in ("set1", "set4", "set5"):
        put(store, name, "a", "b")
    for act in (check, put):
        with pytest.raises(errors.TooManyLabelSets, match="those of other bundles too"):
            act(store, "sixth", "a")
    put(store, "set2", "a")
    for name in ("set1", "set2"):
        store.delete(name)
    put(store, "sixth", "a")
    with pytest.raises(errors.TooManyLabelSets):
        put(store, "seventh", *"abcdefghijklmn")
    put(store, "seventh", *"abcdefghijklm")


@shared
def test_other_spaces_sets_are_listed_until_they_are_here_or_deleted(
    store: LabelStore, others: list[LabelStore]
) -> None:
    for other in others:
        put(other, "pets", "cat")
    put(others[0], "cars", "van")
    assert store.read_versions()[1] == {}
    put(store, "cars", "bus")
    assert store.list_others() == {"pets": "c" * 64}  # the newest
    assert others[1].list_others()["cars"] != "c" * 64
    assert store.read("pets") is None
    found = store.read("cars", "b" * 64)
    assert found.definition.names == ("van",)
    put(store, "pets", "cat")
    for name in ("cars", "pets"):
        store.delete(name)
    assert store.list_others() == find_versions(others[0]) == find_versions(others[1]) == {}


@shared
def test_sets_that_version_1_0_noted_as_deleted_are_not_listed(
    store: LabelStore, others: list[LabelStore]
) -> None:
    put(others[0], "pets", "cat")
    put(others[0], "cars", "van")
    run_in_database(
        store,
        "CREATE TABLE deleted_label_sets (space VARCHAR(64), name VARCHAR(100), version BIGINT)",
        *(f"INSERT INTO deleted_label_sets VALUES ('{SPACE}', '{n}', 2)" for n in ("pets", "cars")),
    )
    assert store.list_others() == {"cars": "b" * 64}, "it was written again"


@shared
def test_writers_at_the_same_time_each_get_a_version_of_their_own(location: str) -> None:
    stores = [open_store(location, limits=Limits(99, 999, 9)) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        work = threads.map(lambda i: put(stores[i % 4], f"set{i}", "a", f"{i}"), range(40))
        versions = list(work)
    assert len(set(versions)) == 40
    assert find_versions(stores[0]) == {f"set{i}": version for i, version in enumerate(versions)}
    assert stores[0].read_state().revision == max(versions)
    with ThreadPoolExecutor(4) as threads:
        results = [*threads.map(lambda i: learn(stores[i % 4], "dog" * (i % 2), seed=i), range(8))]
    assert sorted(created for _, created in results) == [False] * 7 + [True]
    assert read_counts(stores[0]) == {"": 8, "dog": 8}
    for store in stores:
        store.close()


def test_full_disk_raises_store_full_and_changes_nothing(file_store: LabelStore) -> None:
    learn(file_store, "cat")
    before, photos = find_versions(file_store), (make_examples(1, width=100_000), ())
    wide = {"photos": photos, "key": "f"}
    large = define("large", "x"), np.ones((1, 100_000), np.float32)
    run_in_database(file_store, "PRAGMA max_page_count = 1")  # at least the present size
    for write in (
        lambda: file_store.write(*large, replace=False),
        lambda: learn(file_store, "cat", **wide),
        lambda: learn(file_store, "dog", **wide),  # would be appended
    ):
        with pytest.raises(errors.StoreFull):
            write()
    assert (find_versions(file_store), read_counts(file_store)) == (before, {"cat": 2})
    assert file_store.read_state().revision == before["pets"]
    run_in_database(file_store, "PRAGMA max_page_count = 1000000")
    file_store.write(*large, replace=False)
    assert learn(file_store, "dog") == (2, False)


@pytest.mark.parametrize("given", [(0, 1), (1,), ()])
def test_thresholds_are_written_without_the_embeddings(
    path: Path, file_store: LabelStore, given: tuple[int, ...]
) -> None:
    store, log = file_store, path.with_name(f"{path.name}-wal")
    rows = np.random.default_rng(0).normal(size=(2, 100_000)).astype(np.float32)
    before = define("pets", "cat", "dog", given=given, embeddings=rows[list(given)])
    store.write(before, rows, replace=False)
    # Version 1.0 left no space for longer thresholds: then SQLite writes the row once more.
    run_in_database(store, "UPDATE label_sets SET labels = trim(labels)")
    with closing(open_store(str(path))) as other, other.database.connect() as reader:
        other._read_state(reader)  # else the log of SQLite is emptied
        sizes = []
        for threshold in (0.1234567890123456, 0.5, 1e-05, None):
            start = log.stat().st_size
            changed = replace_fields(before, thresholds=(threshold, None), embeddings=rows[:0])
            known = store.read_versions()[1]["pets"]
            written = store.calibrate(changed, known)
            sizes.append(log.stat().st_size - start)
            assert store.read_versions()[1]["pets"] == (written.version, written.digest) != known
            found = store.read("pets")
            assert found.definition.thresholds == changed.thresholds
            np.testing.assert_array_equal(found.embeddings, rows)
            with pytest.raises(errors.LabelSetChanged):
                store.calibrate(changed, known)
    assert max(sizes[1:]) < 100_000 < rows.nbytes


def test_server_that_goes_and_comes_back_is_found_again(postgres: Postgres) -> None:
    with closing(open_store(postgres.url)) as store:
        version = put(store, "outage", "cat")
        before = store.read_state()
        postgres.stop()
        with pytest.raises(errors.StoreUnavailable):
            store.read_state()
        with pytest.raises(errors.StoreUnavailable):
            put(store, "outage", "dog")
        postgres.start()
        after = store.read_state()
        assert after.revision == before.revision
        assert after != before, "it may have been restored from a backup"
        assert check(store, "outage", "cat") == version
        store.delete("outage")


def test_file_that_was_removed_takes_no_more_writes(path: Path, file_store: LabelStore) -> None:
    put(file_store, "pets", "cat")
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(errors.StoreUnavailable):
        put(file_store, "lost", "cat")
    version = put(file_store, "zoo", "owl")
    with closing(open_store(str(path))) as fresh:
        assert find_versions(fresh) == {"zoo": version}


def learn(
    store: LabelStore, label: str, seed: int = 0, photos: Any = None, **options: Any
) -> tuple[int, bool]:
    usual = {"key": "e", "embedding": None, "if_version": None}
    positive, negative = photos or (make_examples(2, seed), ())
    change = partial(add_examples, positive=positive, negative=negative)
    learnt = store.learn("pets", label, change=change, **{**usual, **options})
    return learnt.added, learnt.created


def read_counts(store: LabelStore) -> dict[str, int]:
    rows = store.read_lessons("pets", ["e"])
    return {row.label: Examples.from_bytes(row.content).count for row in rows if row.content}


def test_examples_raise_the_version_of_its_set_and_leave_its_row(store: LabelStore) -> None:
    first = put(store, "pets", "cat")
    assert learn(store, "cat") == (2, False)
    assert learn(store, "cat") == (0, False), "the same photos"
    assert learn(store, "cat", seed=1) == (2, False)
    assert find_versions(store) == {"pets": first + 2}
    assert check(store, "pets", "cat") == first + 2
    with store.database.connect() as connection:
        row = connection.exec_driver_sql("SELECT version FROM label_sets").scalar_one()
    assert row == first
    with pytest.raises(errors.LabelSetChanged):
        learn(store, "cat", seed=2, if_version=first)
    with pytest.raises(errors.InvalidLabelSet, match="other kind"):
        learn(store, "cat", photos=((), make_examples(2)))
    assert read_counts(store) == {"cat": 4}
    newer = store.read_lessons("pets", ["e"], first + 2)
    assert [(row.label, row.content) for row in newer] == [("cat", None)]
    with pytest.raises(errors.LabelSetChanged):
        store.delete_lessons("pets", "cat", if_version=first)
    store.delete_lessons("pets", "cat")
    assert (read_counts(store), find_versions(store)) == ({}, {"pets": first + 3})


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize(
    "delete",
    [
        lambda store: store.delete_lessons("pets", "cat"),
        lambda store: store.delete("pets"),
        lambda store: put(store, "pets", "dog"),
        lambda store: learn(store, "cat", seed=1, forget=["e"]),
    ],
)
def test_deleted_examples_are_not_in_the_file(
    path: Path, file_store: LabelStore, delete: Callable[[LabelStore], object], is_read: bool
) -> None:
    put(file_store, "pets", "cat")
    learn(file_store, "cat")
    (row,) = file_store.read_lessons("pets", ["e"])
    content = row.content[40:100]

    def is_there() -> bool:
        return any(content in each.read_bytes() for each in path.parent.glob(f"{path.name}*"))

    assert is_there()
    with file_store.database.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA secure_delete").scalar_one() == 1
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        if is_read:
            reader.execute("BEGIN").execute("SELECT count(*) FROM label_sets").fetchall()
        delete(file_store)
        file_store.read_state()
        assert is_there() == is_read
        if is_read:
            reader.execute("COMMIT")
            file_store.read_state()  # as a poll does
        assert not is_there()


def test_label_of_a_set_that_changed_meanwhile_is_not_appended_without_its_text(
    store: LabelStore,
) -> None:
    put(store, "pets", "cat")
    with pytest.raises(errors.LabelSetChanged):
        learn(store, "dog")
    assert learn(store, "dog", embedding=np.full((1, 3), 2, np.float32)) == (2, False)
    found = store.read("pets")
    assert (found.definition.names, found.embeddings[:, 0].tolist()) == (("cat", "dog"), [1, 2])


def test_set_of_another_space_keeps_its_examples_and_a_new_set_has_none(
    path: Path, file_store: LabelStore
) -> None:
    with closing(open_store(str(path), space="b" * 64)) as other:
        put(other, "pets", "cat", "dog")
        for label in ("cat", "dog"):
            learn(other, label, key="f")
        put(file_store, "pets", "cat", "yak")
        for label in ("cat", "yak"):
            learn(file_store, label)
        assert {row.label for row in other.read_lessons("pets", ["f"])} == {"cat", "dog", "yak"}
        put(file_store, "pets", "yak")  # `cat` is deleted, `dog` was never here
        assert {row.label for row in other.read_lessons("pets", ["f"])} == {"dog", "yak"}
    run_sql(path, "DELETE FROM label_sets")  # by a service that knows no examples
    put(file_store, "pets", "cat")
    assert file_store.read_lessons("pets", ["e"]) == ()


def test_old_store_whose_user_may_not_create_tables_takes_sets_and_no_examples(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    location = postgres.make_database()
    with closing(open_store(location)) as owner:
        put(owner, "pets", "cat")
        run_in_database(owner, "DROP TABLE learnt_labels")  # that of words is there, not granted
        run_in_database(owner, "DROP ROLE IF EXISTS guest")
        run_in_database(owner, "CREATE ROLE guest LOGIN")
        run_in_database(owner, "GRANT ALL ON label_store, label_sets TO guest")
        with owner.database.connect() as connection:
            schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        run_in_database(owner, f"GRANT USAGE ON SCHEMA {schema} TO guest")
        guest_location = location.replace("postgres@", "guest@")
        with closing(open_store(guest_location)) as guest:
            put(guest, "pets", "cat", "dog")
            assert "may not read: 'label_words', 'learnt_labels'" in caplog.text
            put(guest, "plants", "fern")
            guest.delete("plants")
            words = {"cat": Words(translations={"de": "Katze"})}
            with pytest.raises(errors.StoreReadOnly, match="no table label_words"):
                put(guest, "pets", "cat", words=words)
            for refused in (
                lambda: guest.check_room("pets", 3),
                lambda: guest.delete_lessons("pets", "cat"),
            ):
                with pytest.raises(errors.StoreReadOnly, match="no table learnt_labels"):
                    refused()
            with closing(open_store(location)) as upgraded:
                learn(upgraded, "cat")
            run_in_database(owner, "GRANT ALL ON learnt_labels TO guest")
            assert read_counts(guest) == {"cat": 2}, "the table is found when it is there"


def test_words_are_kept_with_a_set_and_go_with_it(location: str) -> None:
    words = {"cat": Words(("puss",), ("pet",), {"de": "Katze"})}
    with closing(open_store(location)) as store:
        first = put(store, "pets", "cat", "dog")
        second = put(store, "pets", "cat", "dog", words=words)
        assert put(store, "pets", "cat", "dog", words=words) == second > first
        with pytest.raises(errors.LabelSetExists):
            write(store, "pets", "cat", "dog", replace=False)
        assert store.read_words("pets") == pack_words(words)
        learn(store, "yak", embedding=np.ones((1, 3), np.float32))  # appends a label
        assert store.read_words("pets") == pack_words(words)
        store.delete("pets")
        put(store, "pets", "cat")
        assert store.read_words("pets") == ""


@pytest.mark.parametrize("is_writable", [True, False])
def test_store_without_examples_are_read_and_gets_the_table_if_it_is_writable(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    with closing(open_store(str(path))) as old:
        version = put(old, "pets", "cat")
    run_sql(path, "DROP TABLE learnt_labels")
    run_sql(path, "DROP TABLE label_words")
    if not is_writable:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with closing(open_store(str(path))) as store:
        assert find_versions(store) == {"pets": version}
        assert store.read("pets") is not None
        assert store.read_lessons("pets", ["e"]) == ()
        assert store.read_words("pets") == ""
        if is_writable:
            put(store, "pets", "dog")
        else:
            with pytest.raises(errors.StoreReadOnly):
                store.check_room("pets", 1)
