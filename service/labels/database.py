"""The database behind the label store: SQLite by a path, PostgreSQL by a URL.

In: the setting `label_store`. Out: transactions, with two kinds of failure: away (or locked), and
disk full. Next: `store.py`, which has the tables.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.pool import StaticPool

from service.errors import (
    StartError,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)

MEMORY = "memory"
_POSTGRES = "postgresql+psycopg"
_FILE = "file"  # where a connection notes which one it has open
_POSTGRES_DISK_FULL = "53100"  # SQLSTATE `disk_full`
_WRITING = "label_store_writing"
_WAL_RETRY_SECONDS = 0.005


class Database:
    """Transactions of one database; safe to use from several threads.

    Attributes:
        connections: how many were made so far; behind another one may be another database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """Takes the engine; `open_database` is what to call."""
        self.connections = 0
        self._engine = engine
        self._remote: WeakSet[Any] = WeakSet()
        sa.event.listen(engine, "connect", self._note_connection)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Gives a connection to read with.

        Raises:
            StoreUnavailable: the database is away or locked.
        """
        with self._naming_failures(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Gives a connection in a transaction, which is committed unless something is raised.

        Raises:
            StoreUnavailable: the database is away or locked.
            StoreFull: its disk has no space left.
        """
        engine = self._engine.execution_options(**{_WRITING: True})
        with self._naming_failures(), engine.connect() as connection:
            with connection.begin():
                yield connection
            if engine.dialect.name == "sqlite":
                _empty_log(connection)

    def hang_up(self) -> None:
        """Breaks the connections to a server: who waits for it gets `StoreUnavailable`.

        May be called from any thread. A server that hangs, or that lets connect and keeps the
        queries, would be waited for without an end; a file has no such server.
        """
        # One that opens or closes at this moment is not waited for: who waits hangs up again.
        with suppress(OSError, RuntimeError, self._engine.dialect.loaded_dbapi.Error):
            for connection in [one for one in self._remote if not one.closed]:
                with socket.socket(fileno=os.dup(connection.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def _note_connection(self, opened: object, _record: object) -> None:
        self.connections += 1
        if self._engine.dialect.name == "postgresql":
            self._remote.add(opened)

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            raise _name_failure(error, name_place(self._engine.url)) from error


def name_place(url: sa.URL) -> str:
    """Returns where a database is, for a person: nothing of it is secret."""
    if url.drivername == "sqlite":
        return str(url.database)
    # A password may stand among the options as well; the other one is not spelled out.
    return url.set(drivername="postgresql", query={}).render_as_string()


def open_database(location: str | None, *, patience_seconds: float = 2.0) -> Database:
    """Prepares a database; nothing is connected yet.

    Args:
        location: a file's path, `sqlite:///path`, `postgresql://...`, or `memory`, which
            forgets at the end; None is `find_default_path()`.
        patience_seconds: how long to wait for a lock or a connection.

    Raises:
        StartError: there can be no such database.
    """
    if location == MEMORY:
        return Database(_open_sqlite(":memory:", patience_seconds))
    if location is None or "://" not in location:
        return Database(_open_sqlite(location or str(find_default_path()), patience_seconds))
    try:
        url = make_url(location)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StartError("label_store is neither a path nor a URL") from error
    if url.drivername == "sqlite":
        return Database(_open_sqlite(url.database or ":memory:", patience_seconds))
    if url.drivername not in ("postgres", "postgresql", _POSTGRES):
        raise StartError("label_store: the URL has to begin with sqlite: or postgresql:")
    return Database(_open_postgres(url.set(drivername=_POSTGRES), patience_seconds))


def find_default_path() -> Path:
    """Returns the user's state folder (XDG Base Directory) with our file in it."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(state) / "ml-decoder" / "labels.db"


def _open_sqlite(path: str, patience_seconds: float) -> sa.Engine:
    if path == ":memory:":
        options: dict[str, Any] = {"poolclass": StaticPool}
    else:
        options = {}
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
            if not _is_sqlite(error, sqlite3.SQLITE_BUSY) or time.monotonic() >= give_up:
                raise
        time.sleep(_WAL_RETRY_SECONDS)


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the lock first: one that has read before could only fail to get it.
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _empty_log(connection: sa.Connection) -> None:
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


def _open_postgres(url: sa.URL, patience_seconds: float) -> sa.Engine:
    milliseconds = int(patience_seconds * 1000)
    usual = {
        "connect_timeout": max(2, round(patience_seconds)),  # libpq knows no less
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 5 * milliseconds,
    }
    # What the URL says of a connection goes before: a schema of its own, for one.
    given = url.normalized_query
    options = f"-c lock_timeout={milliseconds} -c synchronous_commit=on"
    try:
        return sa.create_engine(
            url,
            pool_pre_ping=True,
            pool_timeout=patience_seconds,
            connect_args={
                **{name: value for name, value in usual.items() if name not in given},
                "options": " ".join([options, *given.get("options", ())]),
            },
        )
    except ImportError as error:
        raise StartError(
            "label_store: PostgreSQL needs a driver: pip install 'ml-decoder-serve[postgres]'"
        ) from error


def _name_failure(error: sa.exc.SQLAlchemyError, place: str) -> StoreError:
    # Without one it is SQLAlchemy's own: no free connection in time, for example.
    origin = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    if _is_sqlite(origin, sqlite3.SQLITE_NOTADB):
        return StoreIncompatible(f"label_store {place}: the file is no SQLite database")
    reason = str(origin or error).strip().partition("\n")[0]
    failure = StoreFull if _is_full(origin) else StoreUnavailable
    return failure(f"label_store {place}: {reason}")


def _is_full(error: BaseException | None) -> bool:
    on_postgres = getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL
    return on_postgres or _is_sqlite(error, sqlite3.SQLITE_FULL)


def _is_sqlite(error: BaseException | None, code: int) -> bool:
    """Tells whether an error is SQLite's of this code, whatever the details in its upper bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == code
