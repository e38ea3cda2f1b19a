"""The database behind the label store: SQLite by a path, PostgreSQL by a URL.

In: the setting `label_store`. Out: transactions, with two kinds of failure: away (or locked), and
disk full. Next: `store.py`, which has the tables.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from service.errors import (
    StartError,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)
from service.labels.store.sqlite import WRITING, empty_log, is_sqlite, open_sqlite

MEMORY = "memory"
_POSTGRES = "postgresql+psycopg"
_POSTGRES_DISK_FULL = "53100"  # SQLSTATE `disk_full`


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
        engine = self._engine.execution_options(**{WRITING: True})
        with self._naming_failures(), engine.connect() as connection:
            with connection.begin():
                yield connection
            if engine.dialect.name == "sqlite":
                empty_log(connection)

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
        location: a file's path, which may begin with `~`, `sqlite:///path`, `postgresql://...`,
            or `memory`, which forgets at the end; None is `find_default_path()`.
        patience_seconds: how long to wait for a lock or a connection.

    Raises:
        StartError: there can be no such database.
    """
    if location == MEMORY:
        return Database(open_sqlite(":memory:", patience_seconds))
    if location is None or "://" not in location:
        return Database(open_sqlite(location or str(find_default_path()), patience_seconds))
    try:
        url = make_url(location)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StartError("label_store is neither a path nor a URL") from error
    if url.drivername == "sqlite":
        return Database(open_sqlite(url.database or ":memory:", patience_seconds))
    if url.drivername not in ("postgres", "postgresql", _POSTGRES):
        raise StartError("label_store: the URL has to begin with sqlite: or postgresql:")
    return Database(_open_postgres(url.set(drivername=_POSTGRES), patience_seconds))


def find_default_path() -> Path:
    """Returns the user's state folder (XDG Base Directory) with our file in it."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(state) / "ml-decoder" / "labels.db"


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
    if is_sqlite(origin, sqlite3.SQLITE_NOTADB):
        return StoreIncompatible(f"label_store {place}: the file is no SQLite database")
    reason = str(origin or error).strip().partition("\n")[0]
    failure = StoreFull if _is_full(origin) else StoreUnavailable
    return failure(f"label_store {place}: {reason}")


def _is_full(error: BaseException | None) -> bool:
    on_postgres = getattr(error, "sqlstate", None) == _POSTGRES_DISK_FULL
    return on_postgres or is_sqlite(error, sqlite3.SQLITE_FULL)
