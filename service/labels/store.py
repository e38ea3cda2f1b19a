"""The store of label sets: definitions and their embeddings, in SQLite or PostgreSQL.

In: definitions with embeddings. Out: the same, after any crash. Every write raises one revision
number, which becomes the version of the set it wrote, so that other processes see with one small
query that something is new. Only what is committed counts. Everything here blocks. Next:
`catalogue.py`, which keeps it off the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from service.errors import (
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StartError,
    StoreUnavailable,
    TooManyLabelSets,
)
from service.labels.database import Database
from service.labels.definition import Definition, Embeddings

SCHEMA_VERSION = 1

_metadata = sa.MetaData()
# Numbers and hashes are compared byte by byte: a database may have any collation.
_state = sa.Table(
    "label_store",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
_sets = sa.Table(
    "label_sets",
    _metadata,
    sa.Column("space", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(100), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("num_labels", sa.Integer, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("labels", sa.Text, nullable=False),
    sa.Column("embeddings", sa.LargeBinary, nullable=False),
)


@dataclass(frozen=True)
class Limits:
    """Most sets, and most labels in all of them together."""

    sets: int
    labels: int


@dataclass(frozen=True, eq=False)
class StoredSet:
    """A label set as the store has it.

    Attributes:
        definition: what its author gave.
        embeddings: of every label, float32 [L, E].
        version: the revision that wrote it.
    """

    definition: Definition
    embeddings: Embeddings
    version: int


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

    Every method raises `StoreUnavailable` where the database is away or locked, and every
    write `StoreFull` where its disk is full; nothing is kept then.
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
            revision = connection.execute(sa.select(_state.c.revision)).scalar_one()
            rows = connection.execute(
                sa.select(_sets.c.name, _sets.c.version).where(_sets.c.space == self._space)
            )
            return revision, {name: version for name, version in rows}  # noqa: C416 - typed rows

    def read_revision(self) -> int:
        """Returns the revision: it is another one after every write, in any process."""
        with self._reading() as connection:
            revision: int = connection.execute(sa.select(_state.c.revision)).scalar_one()
            return revision

    def read(self, name: str) -> StoredSet | None:
        """Returns a set; None where there is none of that name.

        Raises:
            InvalidLabelSet: its row was damaged.
        """
        with self._reading() as connection:
            row = connection.execute(sa.select(_sets).where(self._is(name))).one_or_none()
        return None if row is None else _decode(row)

    def find(self, name: str) -> tuple[int, str] | None:
        """Returns version and digest of a set; None where there is none of that name."""
        with self._reading() as connection:
            row = connection.execute(
                sa.select(_sets.c.version, _sets.c.digest).where(self._is(name))
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
            if_version: write only over this version.

        Raises:
            LabelSetExists: another set has the name, and `replace` is false.
            LabelSetChanged: the set is not in the version `if_version`.
            TooManyLabelSets: it would be too many.
        """
        name, digest = definition.name, definition.digest()
        with self._writing() as connection:
            previous = self._lock(connection)
            row = self._find(connection, name)
            if if_version is not None and (row is None or row.version != if_version):
                raise LabelSetChanged(name)
            if row is not None and row.digest == digest:
                return Written(row.version, created=False, changed=False, previous=previous)
            if row is not None and not replace:
                raise LabelSetExists(name)
            self._check_limits(connection, definition)
            connection.execute(sa.delete(_sets).where(self._is(name)))
            values = _encode(definition, embeddings)
            connection.execute(
                sa.insert(_sets).values(
                    space=self._space, version=previous + 1, digest=digest, **values
                )
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
            connection.execute(sa.delete(_sets).where(self._is(name)))
            self._advance(connection, previous)
            return Written(previous + 1, created=False, changed=True, previous=previous)

    def close(self) -> None:
        """Closes the connections."""
        self._database.close()

    def _is(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(_sets.c.space == self._space, _sets.c.name == name)

    def _find(self, connection: sa.Connection, name: str) -> sa.Row[int, str] | None:
        return connection.execute(
            sa.select(_sets.c.version, _sets.c.digest).where(self._is(name))
        ).one_or_none()

    def _lock(self, connection: sa.Connection) -> int:
        # One writer at a time, so that revisions are committed in their order.
        query = sa.select(_state.c.revision).with_for_update()
        revision: int = connection.execute(query).scalar_one()
        return revision

    def _advance(self, connection: sa.Connection, previous: int) -> None:
        connection.execute(sa.update(_state).values(revision=previous + 1))

    def _check_limits(self, connection: sa.Connection, definition: Definition) -> None:
        others = sa.and_(_sets.c.space == self._space, _sets.c.name != definition.name)
        total = sa.func.coalesce(sa.func.sum(_sets.c.num_labels), 0)
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
            if connection.dialect.name == postgresql.dialect.name:
                # Processes that start together would make the tables twice.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            _metadata.create_all(connection)
            version = connection.execute(sa.select(_state.c.schema_version)).scalar_one_or_none()
            if version is None:
                first = {"id": 1, "schema_version": SCHEMA_VERSION, "revision": 0}
                connection.execute(sa.insert(_state).values(**first))
            elif version != SCHEMA_VERSION:
                raise StartError(
                    f"label_store: schema version {version}, this service has {SCHEMA_VERSION}"
                )
        self._prepared = True


_ADVISORY_LOCK = 0x6D6C6465636F6465  # "mldecode": the number is anyone's, ours by this name


def _encode(definition: Definition, embeddings: Embeddings) -> dict[str, object]:
    columns = {
        "names": definition.names,
        "prompts": definition.prompts,
        "thresholds": definition.thresholds,
        "given": definition.given,
    }
    return {
        "name": definition.name,
        "num_labels": len(definition.names),
        "labels": json.dumps(columns),
        "embeddings": np.ascontiguousarray(embeddings, "<f4").tobytes(),
    }


def _decode(row: sa.Row[Any]) -> StoredSet:
    try:
        columns: dict[str, Any] = {
            name: tuple(values) for name, values in json.loads(row.labels).items()
        }
        count = len(columns["names"])
        embeddings = np.frombuffer(row.embeddings, "<f4").reshape(count, -1).astype(np.float32)
        definition = Definition(
            name=row.name,
            embeddings=embeddings[list(columns["given"])],
            **columns,
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidLabelSet("Its row is damaged") from error
    return StoredSet(definition, embeddings, row.version)
