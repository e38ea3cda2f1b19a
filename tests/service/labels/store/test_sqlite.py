"""A SQLite file is shared, keeps what is committed, and leaves nothing for a file in its place."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.errors import StartError, StoreUnavailable
from service.labels.store.database import open_database
from tests.service.labels.store.statements import count, run


def test_new_file_that_another_is_writing_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # SQLite refuses WAL at once then, whatever its timeout
    database = open_database(str(path), patience_seconds=0.05)
    with pytest.raises(StoreUnavailable):
        run(database, "CREATE TABLE t (x INTEGER)")
    database.close()

    database = open_database(str(path), patience_seconds=20)
    release = threading.Timer(0.1, other.execute, ["ROLLBACK"])
    release.start()
    run(database, "CREATE TABLE t (x INTEGER)")
    release.join()
    assert count(database) == 0
    database.close()
    other.close()


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="no folder"):
        open_database(str(tmp_path / "file" / "t.db"))


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="is a folder"):
        open_database(str(tmp_path))

    open_database(str(tmp_path / "t.db")).close()


def test_sqlite_writes_through_to_the_disk(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "t.db"))
    with database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
    database.close()


def test_write_leaves_nothing_in_the_log_unless_somebody_reads(tmp_path: Path) -> None:
    reader, writer = (open_database(str(tmp_path / "t.db"), patience_seconds=60) for _ in range(2))
    log = tmp_path / "t.db-wal"
    run(writer, "CREATE TABLE t (x INTEGER)")
    assert log.stat().st_size == 0
    with reader.read() as connection:
        connection.execute(sa.text("SELECT count(*) FROM t"))
        run(writer, "INSERT INTO t VALUES (1)")
        assert log.stat().st_size > 0
    run(writer, "INSERT INTO t VALUES (2)")
    assert log.stat().st_size == 0
    assert count(reader) == 2
    reader.close()
    writer.close()


def test_reader_sees_one_state_while_another_writes(tmp_path: Path) -> None:
    reader, writer = (open_database(str(tmp_path / "t.db")) for _ in range(2))
    run(writer, "CREATE TABLE t (x INTEGER)")
    query = sa.text("SELECT count(*) FROM t")
    with reader.read() as connection:
        assert connection.execute(query).scalar_one() == 0
        run(writer, "INSERT INTO t VALUES (1)")
        assert connection.execute(query).scalar_one() == 0
    assert count(reader) == 1
    reader.close()
    writer.close()
