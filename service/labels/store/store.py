"""The store of label sets: definitions and their embeddings, in SQLite or PostgreSQL.

In: definitions with embeddings. Out: the same, after any crash. Every write raises one revision
number, which becomes the version of the set it wrote, so that other processes see with one small
query that something is new. Only what is committed counts. Everything here blocks. Next:
`stored_sets.py`, which keeps it off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from service.engine.heads import Embeddings
from service.errors import LabelSetNotFound, StoreUnavailable, TooManyLabelSets
from service.labels.definition import Definition
from service.labels.store.database import Database
from service.labels.store.order import Kept, Order, check_version
from service.labels.store.rows import SETS, STATE, StoredSet, decode_set, encode_set, make_tables


class Mark(NamedTuple):
    """Tells one state of the store from every other.

    Attributes:
        revision: another one after every write, in any process.
        connection: of this process to the database, counted; what is behind another one may have
            been restored, and its revisions be others than those of the same number before.
    """

    revision: int
    connection: int


@dataclass(frozen=True)
class Limits:
    """Most sets, and most labels in all of them together."""

    sets: int
    labels: int


@dataclass(frozen=True)
class Written:
    """What a write did.

    Attributes:
        version: the set's version now.
        created: whether there was no such set before.
        changed: whether anything was written.
        previous: the store's revision before.
    """

    version: int
    created: bool
    changed: bool
    previous: int


class LabelStore:
    """The label sets of one embedding space.

    Every method raises `StoreUnavailable` where the database is away or locked (it is
    `StoreIncompatible` where its tables are of another version of the service), and every write
    `StoreFull` where its disk is full; nothing is kept then.
    """

    def __init__(self, database: Database, space: str, limits: Limits) -> None:
        """Opens nothing yet; `space` is the fingerprint of the embedding space."""
        self._database = database
        self._space = space
        self._limits = limits
        self._prepared = False

    def read_versions(self) -> tuple[Mark, dict[str, Kept]]:
        """Returns the mark, and what each set is in (of this mark or a later one)."""
        with self._reading() as connection:
            mark = self._read_mark(connection)
            rows = connection.execute(
                sa.select(SETS.c.name, SETS.c.version, SETS.c.digest).where(
                    SETS.c.space == self._space
                )
            )
            return mark, {name: (version, digest) for name, version, digest in rows}

    def read_mark(self) -> Mark:
        """Returns the mark: while it is the same, the sets are."""
        with self._reading() as connection:
            return self._read_mark(connection)

    def count_others(self) -> int:
        """Returns how many sets there are of other embedding spaces, which are not read here."""
        with self._reading() as connection:
            others = sa.select(sa.func.count()).where(SETS.c.space != self._space)
            count: int = connection.execute(others).scalar_one()
            return count

    def read(self, name: str) -> StoredSet | None:
        """Returns a set; None where there is none of that name.

        Raises:
            InvalidLabelSet: its row was damaged.
        """
        with self._reading() as connection:
            row = connection.execute(sa.select(SETS).where(self._is(name))).one_or_none()
        return None if row is None else decode_set(row)

    def check(self, order: Order) -> int | None:
        """Looks whether a set could be written now, before it is encoded.

        Returns:
            The version in which it is there already, None where it is to be written.

        Raises:
            LabelSetExists: another set has the name, and `replace` is false.
            LabelSetChanged: the set is not in the version `if_version`.
            TooManyLabelSets: it would be too many.
        """
        with self._reading() as connection:
            version = order.find_same(self._find(connection, order.definition.name))
            if version is None:
                self._check_limits(connection, order.definition)
            return version

    def write(self, order: Order, embeddings: Embeddings) -> Written:
        """Writes a set; it is durable when this returns.

        Args:
            order: the set; one that is there already in the same words changes nothing.
            embeddings: of every label, float32 [L, E].

        Raises:
            LabelSetExists: another set has the name, and `replace` is false.
            LabelSetChanged: the set is not in the version `if_version`.
            TooManyLabelSets: it would be too many.
        """
        definition = order.definition
        with self._writing() as connection:
            previous = self._lock(connection)
            found = self._find(connection, definition.name)
            if (version := order.find_same(found)) is not None:
                return Written(version, created=False, changed=False, previous=previous)
            self._check_limits(connection, definition)
            connection.execute(sa.delete(SETS).where(self._is(definition.name)))
            values = encode_set(definition, embeddings)
            connection.execute(
                sa.insert(SETS).values(space=self._space, version=previous + 1, **values)
            )
            self._advance(connection, previous)
            return Written(previous + 1, created=found is None, changed=True, previous=previous)

    def delete(self, name: str, *, if_version: int | None = None) -> Written:
        """Deletes a set for good.

        Raises:
            LabelSetNotFound: there is none of that name.
            LabelSetChanged: the set is not in the version `if_version`.
        """
        with self._writing() as connection:
            previous = self._lock(connection)
            found = self._find(connection, name)
            check_version(name, found, if_version)
            if found is None:
                raise LabelSetNotFound(name)
            connection.execute(sa.delete(SETS).where(self._is(name)))
            self._advance(connection, previous)
            return Written(previous + 1, created=False, changed=True, previous=previous)

    def hang_up(self) -> None:
        """Ends a call that waits for a server, in whatever thread; it raises `StoreUnavailable`."""
        self._database.hang_up()

    def close(self) -> None:
        """Closes the connections."""
        self._database.close()

    def _is(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(SETS.c.space == self._space, SETS.c.name == name)

    def _read_mark(self, connection: sa.Connection) -> Mark:
        revision: int = connection.execute(sa.select(STATE.c.revision)).scalar_one()
        return Mark(revision, self._database.connections)

    def _find(self, connection: sa.Connection, name: str) -> Kept | None:
        row = connection.execute(
            sa.select(SETS.c.version, SETS.c.digest).where(self._is(name))
        ).one_or_none()
        return None if row is None else (row.version, row.digest)

    def _lock(self, connection: sa.Connection) -> int:
        # One writer at a time, so that revisions are committed in their order.
        query = sa.select(STATE.c.revision).with_for_update()
        revision: int = connection.execute(query).scalar_one()
        return revision

    def _advance(self, connection: sa.Connection, previous: int) -> None:
        connection.execute(sa.update(STATE).values(revision=previous + 1))

    def _check_limits(self, connection: sa.Connection, definition: Definition) -> None:
        others = sa.and_(SETS.c.space == self._space, SETS.c.name != definition.name)
        total = sa.func.coalesce(sa.func.sum(SETS.c.num_labels), 0)
        sets, labels = connection.execute(sa.select(sa.func.count(), total).where(others)).one()
        if sets + 1 > self._limits.sets or labels + len(definition.names) > self._limits.labels:
            raise TooManyLabelSets(f"{sets} sets, {labels} labels")

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._prepared_again(), self._database.read() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._prepared_again(), self._database.write() as connection:
            yield connection

    @contextmanager
    def _prepared_again(self) -> Iterator[None]:
        self._prepare()
        try:
            yield
        except StoreUnavailable:
            self._prepared = False  # what comes back may be another, empty database
            raise

    def _prepare(self) -> None:
        """Makes the tables where they are not there; a store may come up after the service."""
        if self._prepared:
            return
        with self._database.write() as connection:
            make_tables(connection)
        self._prepared = True
