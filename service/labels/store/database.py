"""The label store's database: a SQLite file, which may be replaced meanwhile, or PostgreSQL."""

import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from service import errors
from service.settings import expand_home

MEMORY = "memory"
_SQLITE_MEMORY = ":memory:"
_POSTGRES = "postgresql+psycopg"
_HOST = r"(?:\[[\w:.]+\]|[\w.-]*)(?::\d*)?"
# As SQLAlchemy reads it, but with several hosts, and without an @ that belongs to the password.
_POSTGRES_URL = re.compile(
    r"postgres(?:ql(?:\+psycopg)?)?(?P<login>://(?:[^:/]*(?::[^@]*)?@)?)"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<path>(?:/[^?@#]*)?)(?P<query>(?:\?[^@#]*)?)"
)
_NO_PATH = re.compile(  # a mistyped URL, a path of Windows, libpq's DSN
    r"""["']?([A-Za-z][\w+.-]*(:|//.*@)|(.*\s)?(dbname|host|hostaddr|password|port|service|user)\s*=)"""
)
_INVALID = (
    "label_store must be a path (with a colon, begin it with ./ or /), memory, sqlite:///PATH "
    "(sqlite:////PATH from the root) or postgresql://USER:PASSWORD@HOST:PORT/DATABASE; "
    "percent-encode @ / # : % in user and password (@ is %40)"
)
_POSTGRES_DISK_FULL = "53100"  # SQLSTATE `disk_full`
_POSTGRES_READ_ONLY = "25006"  # SQLSTATE `read_only_sql_transaction`: a standby, for example
_STATEMENT_MS = 25_000
_WAL_RETRY_SECONDS = 0.005
_WRITING = "label_store_writing"  # execution option


class Database:
    """One database; `connections` counts those opened: after a restore, they reach another one.

    `address` is its path or URL without user, password and options, or `memory`.
    """

    def __init__(self, engine: sa.Engine, address: str) -> None:
        self.connections = 0
        self.address = address
        self._users = 1
        # In memory, all users have one connection.
        self._turn = Lock() if self.address == MEMORY else nullcontext()
        self._engine = engine
        self._file: tuple[object, ...] | None = None
        self._postgres: Any = None
        sa.event.listen(engine, "connect", self._note_connection)

    @contextmanager
    def connect(self, *, writing: bool = False) -> Iterator[sa.Connection]:
        """Yields a connection; with `writing`, commits its transaction.

        Raises `StoreError` if the database fails.
        """
        if self._identify_file() != self._file:
            self._engine.dispose()  # writes to a file that was replaced would be lost
        engine = self._engine.execution_options(**{_WRITING: writing})
        try:
            with self._turn, engine.connect() as connection:
                yield connection
                connection.commit()
                if self._has_log():
                    _empty_log(connection)
        except sa.exc.SQLAlchemyError as error:
            raise _translate(error, self.address, self._engine.url) from None  # it has the user

    def check_writable(self, connection: sa.Connection) -> None:
        """Raises `StoreReadOnly` if the file, its folder or the server is read-only."""
        if connection.dialect.name == "sqlite":
            is_writable = not (self._file and self._file[2])
        else:
            query = "SHOW transaction_read_only"
            is_writable = connection.exec_driver_sql(query).scalar_one() == "off"
        if not is_writable:
            raise errors.StoreReadOnly(f"label_store {self.address}: it is read-only")

    def break_connection(self) -> None:
        """Breaks the connection to PostgreSQL, so that a call in another thread raises.

        A server that is suspended, or whose machine is, does not enforce `statement_timeout`.
        """
        if self._postgres is None:
            return
        with (
            suppress(OSError, self._engine.dialect.loaded_dbapi.Error),  # closed meanwhile
            socket.socket(fileno=os.dup(self._postgres.fileno())) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)

    def share(self) -> "Database":
        """Returns this database for one more user, who closes it too."""
        self._users += 1
        return self

    def close(self) -> None:
        """Closes the connections, if this is the last user."""
        self._users -= 1
        if self._users <= 0:
            self._engine.dispose()

    def _note_connection(self, connection: object, _record: object) -> None:
        self.connections += 1
        self._file = self._identify_file()
        if self._engine.dialect.name == "postgresql":
            self._postgres = connection

    def _has_log(self) -> bool:
        # Also after a read: a reader that has ended may have kept a write from emptying the log.
        with suppress(OSError):
            log = Path(f"{self._engine.url.database}-wal")
            return self._engine.dialect.name == "sqlite" and log.stat().st_size > 0
        return False

    def _identify_file(self) -> tuple[object, ...] | None:
        if self._engine.dialect.name == "sqlite":
            path = Path(str(self._engine.url.database))
            with suppress(OSError):
                status, mode = path.stat(), _find_read_only_mode(path)
                # SQLite does not notice that others write into an immutable file.
                return status.st_dev, status.st_ino, mode, status.st_mtime_ns if mode else None
        return None


def is_memory(location: str | None) -> bool:
    """Returns whether a location is a store in memory."""
    return (location or "").lower() in (MEMORY, _SQLITE_MEMORY, "sqlite:///:memory:")


def open_database(location: str | None, *, timeout_seconds: float = 2.0) -> Database:
    """Prepares a database. Raises `StartError` if the location is invalid.

    The location is a path, which may begin with `~`, `sqlite:///path`, `postgresql://...`, or
    `memory`; None takes `find_default_path()`. `timeout_seconds` is for a lock or a connection.
    """
    if is_memory(location):
        return Database(_open_sqlite(_SQLITE_MEMORY, timeout_seconds), MEMORY)
    path = str(find_default_path()) if location is None else location
    if match := _POSTGRES_URL.fullmatch(path):
        address = f"postgresql://{match['hosts']}{match['path']}"
        return Database(_open_postgres(match, timeout_seconds), address)
    if path.startswith("sqlite:///"):
        url = make_url(path)
        path = "" if url.query else url.database or ""
    if not path or "://" in path or _NO_PATH.match(path):
        raise errors.StartError(_INVALID)  # without the value: it may have a password
    path = _make_folder(path)
    return Database(_open_sqlite(path, timeout_seconds), _show(path))


def find_default_path() -> Path:
    """Returns the default SQLite file, in the user's state folder (XDG Base Directory)."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expand_home(state) / "ml-decoder" / "labels.db"


def _open_postgres(match: re.Match[str], timeout_seconds: float) -> sa.Engine:
    url = make_url(f"{_POSTGRES}{match['login']}{match['path']}{match['query']}")
    hosts = [make_url(f"{_POSTGRES}://{host}") for host in match["hosts"].split(",")]
    given = dict(url.normalized_query)  # takes precedence
    options = " ".join(given.pop("options", ()))
    timeout_ms = int(timeout_seconds * 1000)
    usual = {
        "host": ",".join(each.host or "" for each in hosts),
        "port": ",".join(str(each.port or "") for each in hosts),
        # PgBouncer may run each transaction in another session.
        "prepare_threshold": None,
        "autocommit": True,  # `begin` begins the transactions
        "connect_timeout": max(2, round(timeout_seconds)),  # libpq's minimum
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 5 * timeout_ms,
        "options": options,
    }
    arguments = {k: value for k, value in usual.items() if k not in given and value != ""}
    # Not in `options`, which PgBouncer refuses.
    limits = {"lock_timeout": timeout_ms, "statement_timeout": _STATEMENT_MS}
    local = {**limits, "synchronous_commit": "on"}.items()
    begin = "; SET LOCAL ".join(["BEGIN", *(f"{k} = {v}" for k, v in local if k not in options)])
    try:
        engine = sa.create_engine(
            url, pool_pre_ping=True, pool_timeout=timeout_seconds, connect_args=arguments
        )
    except ImportError as error:
        raise errors.StartError(
            "label_store: PostgreSQL needs a driver: pip install -e '.[postgres]' in the checkout"
        ) from error
    # With a listener to `begin`, SQLAlchemy takes 0.2 ms more for the statements of a write.
    engine.dialect.do_begin = lambda connection: connection.execute(begin)  # type: ignore[assignment, method-assign]
    return engine


def _show(path: object) -> str:
    """Returns a path, in quotes if it has white space or characters that cannot be printed."""
    text = str(path)
    return text if text.isprintable() and " " not in text else repr(text)


def _make_folder(location: str) -> str:
    """Makes the folder of a SQLite file. Raises `StartError` if the file could never be there."""
    path = expand_home(location)
    shown = _show(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or "it cannot be made"
        raise errors.StartError(f"label_store: no folder for {shown}: {reason}") from error
    if path.is_dir():
        raise errors.StartError(f"label_store must be a file; {shown} is a folder")
    if not path.exists() and not os.access(path.parent, os.W_OK):
        raise errors.StartError(f"label_store: no file {shown}, and its folder cannot be written")
    return str(path)


def _open_sqlite(path: str, timeout_seconds: float) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=path),
        connect_args={"timeout": timeout_seconds, "check_same_thread": False},
        poolclass=sa.StaticPool if path == _SQLITE_MEMORY else sa.QueuePool,
    )

    def prepare(_dialect: object, _record: object, arguments: Any, options: Any) -> None:  # noqa: ANN401
        if mode := _find_read_only_mode(Path(path)):
            arguments[0] = f"{Path(path).absolute().as_uri()}?{mode}"
            options["uri"] = True
            return
        # SQLite's own new files are readable by everyone, and it reports other errors. A file that
        # exists is not opened: closing it would drop the locks of this process (POSIX).
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin_sqlite` begins the transactions
        _set_wal(connection, timeout_seconds)
        connection.execute("PRAGMA synchronous = FULL")
        # The default of some builds only: what was learnt from a face must not stay in free pages.
        connection.execute("PRAGMA secure_delete = ON")
        # In KiB. With 2 MiB, half of a set of 10,000 labels is written twice (0.04 s).
        connection.execute("PRAGMA cache_size = -32768")

    if path != _SQLITE_MEMORY:
        sa.event.listen(engine, "do_connect", prepare)
    sa.event.listen(engine, "connect", set_up)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _find_read_only_mode(path: Path) -> str | None:
    """Returns the URI parameter that opens a file that this process cannot write, else None.

    SQLite cannot create the files of its log there; with `immutable` it works without them.
    """
    if not path.exists() or all(os.access(entry, os.W_OK) for entry in (path, path.parent)):
        return None
    log, index = (Path(f"{path}{ending}") for ending in ("-wal", "-shm"))
    has_log = log.exists() and (index.exists() or log.stat().st_size > 0)
    return "mode=ro" if has_log else "immutable=1"


def _set_wal(connection: sqlite3.Connection, timeout_seconds: float) -> None:
    # If several processes open a new file, SQLite ignores its own timeout for all but one of them.
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_WAL_RETRY_SECONDS)


def _empty_log(connection: sa.Connection) -> None:
    # SQLite would replay the log (`-wal`) into a backup that replaces the file.
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    with suppress(sqlite3.Error):  # the log is durable too
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)")  # the slow part does not block writers
        (timeout_ms,) = driver.execute("PRAGMA busy_timeout").fetchone()
        driver.execute("PRAGMA busy_timeout = 0")  # waiting for a reader would block all writers
        try:
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            driver.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer locks first: after a read, a transaction could not wait for the lock.
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _translate(error: sa.exc.SQLAlchemyError, address: str, url: sa.URL) -> errors.StoreError:
    # SQLAlchemy's own errors have no origin, for example a timeout of its pool.
    origin = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    state, code = getattr(origin, "sqlstate", None), getattr(origin, "sqlite_errorcode", 0)
    basic_code = code & 0xFF  # the upper bits are details
    if basic_code == sqlite3.SQLITE_NOTADB:
        return errors.StoreIncompatible(f"label_store {address}: the file is not a SQLite database")
    line, *_ = str(origin or error).strip().split("\n")
    users = filter(None, (url.username, *url.normalized_query.get("user", ())))
    hidden = (r'(?<=user |role )".*?"', *(rf"(?<!\w){re.escape(user)}(?!\w)" for user in users))
    reason = f"label_store {address}: {re.sub('|'.join(hidden), '***', line)}"
    if "startup parameter: options" in line:
        reason += ": remove them from the URL, or let PgBouncer set ignore_startup_parameters"
    if basic_code == sqlite3.SQLITE_CANTOPEN:  # SQLite opens its log too, but names no file
        reason += ": let the service read the file and write into its folder"
    if code == sqlite3.SQLITE_READONLY or state == _POSTGRES_READ_ONLY:
        return errors.StoreReadOnly(reason)
    if basic_code == sqlite3.SQLITE_FULL or state == _POSTGRES_DISK_FULL:
        return errors.StoreFull(reason)
    return errors.StoreUnavailable(reason)
