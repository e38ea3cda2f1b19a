"""SQLite behind the label store: what its files take to be shared, to last and to be replaced.

In: a path. Out: an engine whose connections write ahead (WAL), sync every commit, and leave a file
that is not at its path any more. Next: `database.py`, whose transactions run on it.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from service.errors import StartError
from service.settings import expand_home

WRITING = "label_store_writing"
"""The execution option of a connection that is to write."""

_FILE = "file"  # where a connection notes which one it has open
_WAL_RETRY_SECONDS = 0.005


def open_sqlite(path: str, patience_seconds: float) -> sa.Engine:
    """Returns an engine for the file at `path`, or for `:memory:`; nothing is connected yet.

    Raises:
        StartError: there can be no such file.
    """
    if path == ":memory:":
        options: dict[str, Any] = {"poolclass": StaticPool}
    else:
        options = {}
        path = str(expand_home(path))
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or "not possible"
            raise StartError(f"label_store: no folder for {path}: {reason}") from error
        if Path(path).is_dir():
            raise StartError(f"label_store: {path} is a folder; a file in it may be named")
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=path),
        connect_args={"timeout": patience_seconds, "check_same_thread": False},
        **options,
    )

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin_sqlite` opens the transactions
        _take_wal(connection, patience_seconds)
        connection.execute("PRAGMA synchronous = FULL")

    sa.event.listen(engine, "connect", set_up)
    if path != ":memory:":
        _follow_file(engine, Path(path))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def empty_log(connection: sa.Connection) -> None:
    """Moves what is committed from SQLite's log (`-wal`) into the file, unless somebody reads it.

    A log that is left beside a file that was restored would be played into that one.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    with suppress(sqlite3.Error):  # what is in the log is as durable
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)")  # the slow part, beside other writers
        (patience_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute("PRAGMA busy_timeout = 0")  # who waits for a reader keeps all writers out
        try:
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            driver.execute(f"PRAGMA busy_timeout = {patience_ms}")


def is_sqlite(error: BaseException | None, code: int) -> bool:
    """Tells whether an error is SQLite's of this code, whatever the details in its upper bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == code


def _follow_file(engine: sa.Engine, path: Path) -> None:
    """Leaves a file that is not at its path any more: what is written to it would be lost."""

    def note_file(_connection: sqlite3.Connection, record: sa.pool.ConnectionPoolEntry) -> None:
        record.info[_FILE] = _identify(path)

    def check_file(
        _connection: sqlite3.Connection, record: sa.pool.ConnectionPoolEntry, _proxy: object
    ) -> None:
        if record.info.get(_FILE) != _identify(path):
            raise sa.exc.DisconnectionError("another file is there")

    sa.event.listen(engine, "connect", note_file)
    sa.event.listen(engine, "checkout", check_file)


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _take_wal(connection: sqlite3.Connection, patience_seconds: float) -> None:
    # Of several that open a new file at once, SQLite tells all but one that it is locked, without
    # the wait that is its timeout: each could hold what the others wait for.
    give_up = time.monotonic() + patience_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_sqlite(error, sqlite3.SQLITE_BUSY) or time.monotonic() >= give_up:
                raise
        time.sleep(_WAL_RETRY_SECONDS)


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the lock first: one that has read before could only fail to get it.
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
