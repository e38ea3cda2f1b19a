"""A location becomes a database that keeps what it commits, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.errors import StartError, StoreUnavailable
from service.labels.store.database import Database, find_default_path, open_database
from tests.service.labels.store.statements import count, run


def insert_and_fail(database: Database) -> None:
    with database.write() as connection:
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))
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
    run(first, "CREATE TABLE t (x INTEGER)")
    run(first, "INSERT INTO t VALUES (1)")
    assert count(second) == 1
    first.close()
    second.close()


@pytest.mark.parametrize("location", ["~/tt.db", "sqlite:///~/tt.db"])
def test_path_may_begin_with_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    database = open_database(location)
    run(database, "CREATE TABLE t (x INTEGER)")
    database.close()
    assert (tmp_path / "home" / "tt.db").is_file()
    assert not (tmp_path / "~").exists()


def test_failure_tells_where_the_database_is_and_no_password(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = open_database(str(path))
    path.mkdir()
    with pytest.raises(StoreUnavailable) as failure:
        count(database)
    assert str(failure.value) == f"label_store {path}: unable to open database file"
    database.close()

    database = open_database("postgres://me:secret@127.0.0.1:1/labels?password=secret")
    with pytest.raises(StoreUnavailable) as failure:
        count(database)
    assert str(failure.value).startswith("label_store postgresql://me:***@127.0.0.1:1/labels: conn")
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)
    database.close()


def test_write_that_raises_leaves_nothing(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "t.db"))
    run(database, "CREATE TABLE t (x INTEGER)")
    with pytest.raises(KeyError):
        insert_and_fail(database)
    assert count(database) == 0
    run(database, "INSERT INTO t VALUES (1)")
    assert count(database) == 1
    database.close()


def test_read_only_file_is_unavailable_to_writers_and_goes_on_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = open_database(str(path))
    run(database, "CREATE TABLE t (x INTEGER)")
    with database.read() as connection:  # the pool gives this one connection to every user
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable):
        run(database, "INSERT INTO t VALUES (1)")
    assert count(database) == 0
    database.close()


def test_options_of_a_url_stand_beside_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of its own, for one, keeps the stores of two services apart."""
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
