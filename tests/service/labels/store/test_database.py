"""A location becomes a database that keeps what it commits, or one line says why not."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.errors import StartError, StoreReadOnly, StoreUnavailable
from service.labels.store.database import Database, find_default_path, open_database
from tests.support.postgres import Postgres

CREATE = "CREATE TABLE t (x INTEGER)"
INSERT = "INSERT INTO t VALUES (1)"
COUNT = "SELECT count(*) FROM t"


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "t.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(open_database(str(path), timeout_seconds=60)) as database:
        yield database


@pytest.fixture
def other(path: Path) -> Iterator[Database]:
    """Another connection to the same file."""
    with closing(open_database(f"sqlite:///{path}")) as database:
        yield database


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        *((url, "label_store") for url in ("mysql://x/y", "://", "http://x")),
        ("{}/file/t.db", "no folder"),
        ("{}/file/\r/t.db", r"no folder for '.*\\r/t.db'"),
        ("{}", "is a folder"),
    ],
)
def test_location_that_cannot_be_a_database_is_refused(
    tmp_path: Path, location: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=reason):
        open_database(location.format(tmp_path))


def test_file_in_a_folder_that_cannot_be_written_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(StartError, match=r"no file .*, and its folder cannot be written"):
        open_database(str(tmp_path / "t.db"))
    (tmp_path / "t.db").touch()
    open_database(str(tmp_path / "t.db")).close()


def test_default_path_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert find_default_path() == Path("/somewhere/ml-decoder/labels.db")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_default_path() == Path("/home/me/.local/state/ml-decoder/labels.db")


@pytest.mark.parametrize("location", ["~/tt.db", "sqlite:///~/tt.db"])
def test_path_may_begin_with_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with closing(open_database(location)) as database:
        run(database, CREATE)
    assert (tmp_path / "home" / "tt.db").is_file()
    assert not (tmp_path / "~").exists()


def test_failure_names_the_address_and_no_password(path: Path, database: Database) -> None:
    path.mkdir()
    with pytest.raises(StoreUnavailable) as failure:
        read(database, COUNT)
    reason = "unable to open database file: let the service read the file and write into its folder"
    assert str(failure.value) == f"label_store {path}: {reason}"
    for hosts in ("127.0.0.1:1", "127.0.0.1:2,[::1]:1"):
        postgres = open_database(f"postgres://me:secret@{hosts}/labels?password=secret")
        with closing(postgres), pytest.raises(StoreUnavailable) as failure:
            read(postgres, COUNT)
        assert str(failure.value).startswith(f"label_store postgresql://{hosts}/labels: conn")
        assert "port 1 failed" in str(failure.value)
        assert "secret" not in str(failure.value)
        assert "\n" not in str(failure.value)


@pytest.mark.parametrize("login", ["app-1:secret@/postgres?", "/postgres?user=app-1&", "?"])
def test_failed_login_names_no_user(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setenv("PGUSER", "app-1")
    database = open_database(f"postgresql://{login}{postgres.url.partition('?')[2]}")
    with closing(database), pytest.raises(StoreUnavailable, match=r"role \*+ does not") as failure:
        read(database, COUNT)
    assert failure.value.__suppress_context__  # a traceback would show it
    with closing(open_database(postgres.url)) as database:
        assert read(database, "SELECT 1") == 1


def test_write_that_raises_changes_nothing(database: Database) -> None:
    run(database, CREATE)
    with pytest.raises(KeyError):
        insert_and_fail(database)
    assert read(database, COUNT) == 0
    run(database, INSERT)
    assert read(database, COUNT) == 1
    assert read(database, "PRAGMA synchronous") == 2  # FULL


def test_read_only_file_refuses_writers_and_can_be_read(database: Database) -> None:
    run(database, CREATE)
    with database.connect() as connection:  # the pool gives this connection to every user
        database.check_writable(connection)
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly, match="a readonly database"):
        run(database, INSERT)
    assert read(database, COUNT) == 0


def test_read_only_server_refuses_writers_and_can_be_read(postgres: Postgres) -> None:
    url = f"{postgres.make_database()}&options=-cdefault_transaction_read_only%3Don"
    with closing(open_database(url)) as database, database.connect() as connection:
        with pytest.raises(StoreReadOnly, match="it is read-only"):
            database.check_writable(connection)
        with pytest.raises(StoreReadOnly, match="in a read-only transaction"):
            run(database, CREATE)
        assert read(database, "SELECT 1") == 1


def test_new_file_is_closed_to_others_whatever_the_umask(path: Path, database: Database) -> None:
    before = os.umask(0)
    try:
        run(database, CREATE)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("t.db", "t.db-wal", "t.db-shm"), 0o600)
    path.chmod(0o660)  # the operator's choice
    with closing(open_database(str(path))) as again:
        run(again, INSERT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_second_connection_keeps_the_locks_of_the_first(path: Path, database: Database) -> None:
    """Without them, another process that closes the file deletes the log that is in use."""
    run(database, CREATE)
    with database.connect() as first, database.connect() as second:
        assert [each.execute(sa.text(COUNT)).scalar_one() for each in (first, second)] == [0, 0]
        code = f"import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute({COUNT!r})"
        subprocess.run([sys.executable, "-c", code, path], check=True)
        assert path.with_name("t.db-wal").exists()


def test_postgres_limits_statements_and_locks_and_keeps_the_options_of_its_url(
    postgres: Postgres,
) -> None:
    """A schema of its own, for one, separates the stores of two services."""
    url = f"{postgres.url}&options=-csearch_path%3Dml&keepalives_idle=9"
    with closing(open_database(url)) as database:
        assert read(database, "SHOW statement_timeout") == "25s"
        assert read(database, "SHOW lock_timeout") == "2s"
        assert read(database, "SHOW search_path") == "ml"
        with database.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.info.get_parameters()["keepalives_idle"] == "9"


def test_pooled_transactions_have_limits_and_options_are_refused(pooled: str) -> None:
    database = open_database(f"{pooled}&options=-csearch_path%3Dml")
    with closing(database), pytest.raises(StoreUnavailable, match="ignore_startup_parameters"):
        read(database, COUNT)
    with closing(open_database(pooled)) as database:
        assert read(database, "SHOW statement_timeout") == "25s"


def test_new_file_is_waited_for_while_another_process_writes_it(
    path: Path, database: Database
) -> None:
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")  # then SQLite refuses WAL at once, whatever its timeout
    impatient = open_database(str(path), timeout_seconds=0.05)
    with closing(impatient), pytest.raises(StoreUnavailable):
        run(impatient, CREATE)
    release = threading.Timer(0.1, writer.execute, ["ROLLBACK"])
    release.start()
    run(database, CREATE)
    release.join()
    assert read(database, COUNT) == 0
    writer.close()


def test_log_is_empty_after_a_write_without_readers(
    path: Path, database: Database, other: Database
) -> None:
    log = path.with_name("t.db-wal")
    run(database, CREATE)
    assert log.stat().st_size == 0
    with other.connect() as connection:
        connection.execute(sa.text(COUNT))
        run(database, INSERT)
        assert log.stat().st_size > 0
    run(database, INSERT)
    assert log.stat().st_size == 0
    assert read(other, COUNT) == 2


def test_file_is_opened_anew_only_after_it_was_replaced(path: Path, database: Database) -> None:
    run(database, CREATE)
    run(database, INSERT)
    before = database.connections
    assert read(database, COUNT) == 1
    assert database.connections == before
    backup = path.with_name("backup.db")
    backup.write_bytes(path.read_bytes())
    run(database, INSERT)
    backup.replace(path)
    assert [read(database, COUNT) for _ in range(2)] == [1, 1]
    assert database.connections == before + 1
