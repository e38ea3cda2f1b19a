"""The store of label sets: definitions and their embeddings, in SQLite or PostgreSQL.

In: definitions with embeddings. Out: the same, after any crash. Every write raises one revision
number, which becomes the version of the set it wrote, so that other processes see with one small
query that something is new. Only what is committed counts. Everything here blocks. Next:
`catalogue.py`, which keeps it off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import (
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StoreUnavailable,
    TooManyLabelSets,
)
from service.labels.database import Database
from service.labels.definition import Definition, Embeddings
from service.labels.rows import SETS, STATE, StoredSet, decode_set, encode_set, make_tables

ABSENT = 0
"""The version to demand of a set that must not be there: the first revision is 1."""


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

    def read_versions(self) -> tuple[int, dict[str, int]]:
        """Returns the revision, and the version of each set (of this revision or a later one)."""
        with self._reading() as connection:
            revision = connection.execute(sa.select(STATE.c.revision)).scalar_one()
            rows = connection.execute(
                sa.select(SETS.c.name, SETS.c.version).where(SETS.c.space == self._space)
            )
            return revision, {name: version for name, version in rows}  # noqa: C416 - typed rows

    def read_revision(self) -> int:
        """Returns the revision: it is another one after every write, in any process."""
        with self._reading() as connection:
            revision: int = connection.execute(sa.select(STATE.c.revision)).scalar_one()
            return revision

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

    def find(self, name: str) -> tuple[int, str] | None:
        """Returns version and digest of a set; None where there is none of that name."""
        with self._reading() as connection:
            row = connection.execute(
                sa.select(SETS.c.version, SETS.c.digest).where(self._is(name))
            ).one_or_none()
        return None if row is None else (row.version, row.digest)

    def write(
        self,
        definition: Definition,
        embeddings: Embeddings,
        *,
        replace: bool,
        if_version: int | None = None,
    ) -> Written:
        """Writes a set; it is durable when this returns.

        Args:
            definition: the set; one that is there already in the same words changes nothing.
            embeddings: of every label, float32 [L, E].
            replace: whether a set of that name may be replaced.
            if_version: write only over this version; `ABSENT` writes only over none.

        Raises:
            LabelSetExists: another set has the name, and `replace` is false.
            LabelSetChanged: the set is not in the version `if_version`.
            TooManyLabelSets: it would be too many.
        """
        name, digest = definition.name, definition.digest()
        with self._writing() as connection:
            previous = self._lock(connection)
            row = self._find(connection, name)
            if if_version not in (None, ABSENT if row is None else row.version):
                raise LabelSetChanged(name)
            if row is not None and row.digest == digest:
                return Written(row.version, created=False, changed=False, previous=previous)
            if row is not None and not replace:
                raise LabelSetExists(name)
            self._check_limits(connection, definition)
            connection.execute(sa.delete(SETS).where(self._is(name)))
            values = encode_set(definition, embeddings)
            connection.execute(
                sa.insert(SETS).values(space=self._space, version=previous + 1, **values)
            )
            self._advance(connection, previous)
            return Written(previous + 1, created=row is None, changed=True, previous=previous)

    def delete(self, name: str, *, if_version: int | None = None) -> Written:
        """Deletes a set for good.

        Raises:
            LabelSetNotFound: there is none of that name.
            LabelSetChanged: the set is not in the version `if_version`.
        """
        with self._writing() as connection:
            previous = self._lock(connection)
            row = self._find(connection, name)
            if row is None:
                raise LabelSetNotFound(name)
            if if_version is not None and row.version != if_version:
                raise LabelSetChanged(name)
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

    def _find(self, connection: sa.Connection, name: str) -> sa.Row[int, str] | None:
        return connection.execute(
            sa.select(SETS.c.version, SETS.c.digest).where(self._is(name))
        ).one_or_none()

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
