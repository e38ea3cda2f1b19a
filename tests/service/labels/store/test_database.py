"""A location becomes a database that keeps what it commits, or one line says why not."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.errors import StartError, StoreUnavailable
from service.labels.store.database import Database, find_default_path, open_database
from tests.support.postgres import Postgres

CREATE, INSERT, COUNT = (
    "CREATE TABLE t (x INTEGER)",
    "INSERT INTO t VALUES (1)",
    "SELECT count(*) FROM t",
)


def run(database: Database, statement: str) -> None:
    """Runs a statement and commits it."""
    with database.connect(writing=True) as connection:
        connection.execute(sa.text(statement))


def read(database: Database, query: str) -> Any:
    with database.connect() as connection:
        return connection.execute(sa.text(query)).scalar_one()


def insert_and_fail(database: Database) -> None:
    with database.connect(writing=True) as connection:
        connection.execute(sa.text(INSERT))
        raise KeyError


@pytest.mark.parametrize("location", ["mysql://x/y", "://", "http://x"])
def test_url_of_another_kind_is_refused(location: str) -> None:
    with pytest.raises(StartError, match="label_store"):
        open_database(location)


def test_default_path_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert find_default_path() == Path("/somewhere/ml-decoder/labels.db")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_default_path() == Path("/home/me/.local/state/ml-decoder/labels.db")


def test_path_and_url_name_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.db"
    first, second = open_database(str(path)), open_database(f"sqlite:///{path}")
    run(first, CREATE)
    run(first, INSERT)
    assert read(second, COUNT) == 1
    first.close()
    second.close()


@pytest.mark.parametrize("location", ["~/tt.db", "sqlite:///~/tt.db"])
def test_path_may_begin_with_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    database = open_database(location)
    run(database, CREATE)
    database.close()
    assert (tmp_path / "home" / "tt.db").is_file()
    assert not (tmp_path / "~").exists()


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="no folder"):
        open_database(str(tmp_path / "file" / "t.db"))


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is a folder"):
        open_database(str(tmp_path))
    open_database(str(tmp_path / "t.db")).close()


def test_failure_names_the_address_and_no_password(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = open_database(str(path))
    path.mkdir()
    with pytest.raises(StoreUnavailable) as failure:
        read(database, COUNT)
    assert str(failure.value) == f"label_store {path}: unable to open database file"
    database.close()

    database = open_database("postgres://me:secret@127.0.0.1:1/labels?password=secret")
    with pytest.raises(StoreUnavailable) as failure:
        read(database, COUNT)
    assert str(failure.value).startswith("label_store postgresql://me:***@127.0.0.1:1/labels: conn")
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)
    database.close()


def test_write_that_raises_changes_nothing(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "t.db"))
    run(database, CREATE)
    with pytest.raises(KeyError):
        insert_and_fail(database)
    assert read(database, COUNT) == 0
    run(database, INSERT)
    assert read(database, COUNT) == 1
    database.close()


def test_read_only_file_is_unavailable_to_writers_and_can_be_read(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "t.db"))
    run(database, CREATE)
    with database.connect() as connection:  # the pool gives this connection to every user
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable):
        run(database, INSERT)
    assert read(database, COUNT) == 0
    database.close()


def test_options_of_a_url_are_added_to_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of its own, for one, separates the stores of two services."""
    asked: list[dict[str, Any]] = []
    create = sa.create_engine

    def remember(url: sa.URL, **how: Any) -> sa.Engine:
        asked.append(how["connect_args"])
        return create(url, **how)

    monkeypatch.setattr(sa, "create_engine", remember)
    url = "postgresql://me@host/labels"
    open_database(url).close()
    open_database(f"{url}?options=-csearch_path%3Dml&connect_timeout=9").close()

    usual, given = asked
    assert given["options"] == f"{usual['options']} -csearch_path=ml"
    assert usual["connect_timeout"] > 0
    assert "connect_timeout" not in given
    assert given["keepalives_idle"] == usual["keepalives_idle"]


def test_postgres_limits_statements_and_locks(postgres: Postgres) -> None:
    database = open_database(postgres.url)
    found = [read(database, f"SHOW {name}") for name in ("statement_timeout", "lock_timeout")]
    assert found == ["25s", "2s"]
    database.close()


def test_new_file_is_waited_for_while_another_process_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # then SQLite refuses WAL at once, whatever its timeout
    database = open_database(str(path), timeout_seconds=0.05)
    with pytest.raises(StoreUnavailable):
        run(database, CREATE)
    database.close()

    database = open_database(str(path), timeout_seconds=20)
    release = threading.Timer(0.1, other.execute, ["ROLLBACK"])
    release.start()
    run(database, CREATE)
    release.join()
    assert read(database, COUNT) == 0
    database.close()
    other.close()


def test_sqlite_syncs_every_commit(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "t.db"))
    assert read(database, "PRAGMA journal_mode") == "wal"
    assert read(database, "PRAGMA synchronous") == 2  # FULL
    database.close()


def test_log_is_empty_after_a_write_without_readers(tmp_path: Path) -> None:
    reader, writer = (open_database(str(tmp_path / "t.db"), timeout_seconds=60) for _ in range(2))
    log = tmp_path / "t.db-wal"
    run(writer, CREATE)
    assert log.stat().st_size == 0
    with reader.connect() as connection:
        connection.execute(sa.text(COUNT))
        run(writer, INSERT)
        assert log.stat().st_size > 0
    run(writer, INSERT)
    assert log.stat().st_size == 0
    assert read(reader, COUNT) == 2
    reader.close()
    writer.close()


def test_reader_sees_one_state_while_another_connection_writes(tmp_path: Path) -> None:
    reader, writer = (open_database(str(tmp_path / "t.db")) for _ in range(2))
    run(writer, CREATE)
    with reader.connect() as connection:
        assert connection.execute(sa.text(COUNT)).scalar_one() == 0
        run(writer, INSERT)
        assert connection.execute(sa.text(COUNT)).scalar_one() == 0
    assert read(reader, COUNT) == 1
    reader.close()
    writer.close()


def test_file_is_opened_anew_after_it_was_replaced_only(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = open_database(str(path))
    run(database, CREATE)
    run(database, INSERT)
    before = database.connections
    assert read(database, COUNT) == 1
    assert database.connections == before
    backup = tmp_path / "backup.db"
    backup.write_bytes(path.read_bytes())
    run(database, INSERT)
    backup.replace(path)
    assert [read(database, COUNT) for _ in range(2)] == [1, 1]
    assert database.connections == before + 1
    database.close()
