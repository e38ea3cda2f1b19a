"""Statements on a database: what the tests of transactions and of SQLite's files share."""

from __future__ import annotations

import sqlalchemy as sa

from service.labels.store.database import Database


def run(database: Database, statement: str) -> None:
    """Runs a statement and commits it."""
    with database.write() as connection:
        connection.execute(sa.text(statement))


def count(database: Database) -> int:
    """Returns how many rows the table `t` has."""
    with database.read() as connection:
        found: int = connection.execute(sa.text("SELECT count(*) FROM t")).scalar_one()
        return found
