"""The label store: the sets that clients registered, with their embeddings, in a database.

Every write raises one revision number, which becomes the version of the written set, so that other
processes detect changes with one small query. All methods block.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from service.bundle.card import Calibration
from service.engine.heads import Embeddings
from service.errors import (
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StoreIncompatible,
    StoreUnavailable,
    TooManyLabelSets,
)
from service.labels.definition import Definition, check_size
from service.labels.store.database import Database, format_address

ABSENT = 0
"""`if_version` of a set that must not exist; the first revision is 1."""
PRESENT = -1
"""`if_version` of a set that must exist, in any version."""

SCHEMA_VERSION = 1
_DAMAGED = "Its row in the database is damaged: register the set again"
_ADVISORY_LOCK = 0x6D6C6465636F6465  # any number: "mldecode"

_metadata = sa.MetaData()
_STATE = sa.Table(
    "label_store",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
_SETS = sa.Table(
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
# Version 1.0 left a set that was deleted here in other spaces, and its name in this table.
_NOT_DELETED = sa.text(
    "NOT EXISTS (SELECT 1 FROM deleted_label_sets AS deleted "
    "WHERE deleted.name = label_sets.name AND deleted.version > label_sets.version)"
)


class StoreState(NamedTuple):
    """The state of the store: while it is equal, so are the sets.

    `connections` is the `Database`'s: a backup may have another content at the same revision.
    """

    revision: int
    connections: int


class SetVersion(NamedTuple):
    """Version and digest of a set in the store."""

    version: int
    digest: str


class StoreEntry(NamedTuple):
    """A set with the embeddings of all labels, float32 [L, E]."""

    definition: Definition
    embeddings: Embeddings
    version: int


class WriteResult(NamedTuple):
    """The set's version; above `previous`, the store's last revision, if this call wrote it."""

    version: int
    previous: int
    created: bool = False


@dataclass(frozen=True)
class Limits:
    """Most sets, most labels of all sets together, of all spaces, and most labels of one set."""

    sets: int
    labels: int
    labels_per_set: int


class LabelStore:
    """The label sets of one embedding space, given by its fingerprint.

    Every method raises `StoreUnavailable` if the database is unreachable or locked, and
    `StoreIncompatible` if its tables are of another schema version. A write, also `check`, raises
    `StoreFull` on a full disk and `StoreReadOnly`, and then changes nothing.
    """

    def __init__(self, database: Database, space: str, limits: Limits) -> None:
        self._database = database
        self._space = space
        self._limits = limits
        self._prepared = False

    def read_state(self) -> StoreState:
        """Returns the current state."""
        with self._connect() as connection:
            return self._read_state(connection)

    def read_versions(self) -> tuple[StoreState, dict[str, SetVersion]]:
        """Returns the state and the version of each set, as of this state or a later one."""
        query = sa.select(_SETS.c.name, _SETS.c.version, _SETS.c.digest)
        with self._connect() as connection:
            state = self._read_state(connection)
            rows = connection.execute(query.where(_SETS.c.space == self._space))
            return state, {name: SetVersion(version, digest) for name, version, digest in rows}

    def list_others(self) -> dict[str, str]:
        """Returns name -> space of sets that only other spaces have; the newest if several do."""
        ours = sa.select(_SETS.c.name).where(_SETS.c.space == self._space)
        query = (
            sa.select(_SETS.c.name, _SETS.c.space)
            .where(_SETS.c.space != self._space, _SETS.c.name.not_in(ours))
            .order_by(_SETS.c.version)
        )
        with self._connect() as connection:
            if sa.inspect(connection).has_table("deleted_label_sets"):  # of 1.0
                query = query.where(_NOT_DELETED)
            return {row.name: row.space for row in connection.execute(query)}

    def read(self, name: str, space: str | None = None) -> StoreEntry | None:
        """Returns a set, of another space if given, or None.

        Raises `InvalidLabelSet` if its row is damaged.
        """
        query = sa.select(_SETS).where(_SETS.c.space == (space or self._space))
        with self._connect() as connection:
            row = connection.execute(query.where(_SETS.c.name == name)).one_or_none()
        return None if row is None else _decode_row(row)

    def check(self, definition: Definition, *, replace: bool, if_version: int | None) -> int | None:
        """Runs the checks of `write`; returns the version if the same set is there already."""
        with self._connect() as connection:
            self._database.check_writable(connection)
            found = self._find(connection, definition.name)
            version = _find_same(definition, found, replace, if_version)
            if version is None:
                self._check_limits(connection, definition)
            return version

    def write(
        self,
        definition: Definition,
        embeddings: Embeddings,
        *,
        replace: bool,
        if_version: int | None = None,
    ) -> WriteResult:
        """Writes a set durably, unless the same set is there already.

        Args:
            definition: the set.
            embeddings: of all labels, float32 [L, E].
            replace: without it, another set of the name raises `LabelSetExists`.
            if_version: a version, `ABSENT` or `PRESENT`; another one raises `LabelSetChanged`.

        Raises `InvalidLabelSet` or `TooManyLabelSets` over the limits.
        """
        with self._connect(writing=True) as connection:
            previous = self._lock(connection)
            found = self._find(connection, definition.name)
            if (same := _find_same(definition, found, replace, if_version)) is not None:
                return WriteResult(same, previous)
            self._check_limits(connection, definition)
            connection.execute(sa.delete(_SETS).where(self._match(definition.name)))
            row = _encode_row(definition, embeddings)
            connection.execute(
                sa.insert(_SETS).values(space=self._space, version=previous + 1, **row)
            )
            connection.execute(sa.update(_STATE).values(revision=previous + 1))
            return WriteResult(previous + 1, previous, created=found is None)

    def delete(self, name: str, if_version: int | None = None) -> WriteResult:
        """Deletes a set durably, in all spaces: else the next bundle would encode it again.

        Raises `LabelSetNotFound` or `LabelSetChanged`.
        """
        with self._connect(writing=True) as connection:
            previous = self._lock(connection)
            found = self._find(connection, name)
            check_version(name, found, if_version)
            if found is None:
                raise LabelSetNotFound(name)
            connection.execute(sa.delete(_SETS).where(_SETS.c.name == name))
            connection.execute(sa.update(_STATE).values(revision=previous + 1))
            return WriteResult(previous + 1, previous)

    def break_connection(self) -> None:
        """Makes a call in another thread that waits for a server raise `StoreUnavailable`."""
        self._database.break_connection()

    def close(self) -> None:
        """Closes the connections."""
        self._database.close()

    @contextmanager
    def _connect(self, *, writing: bool = False) -> Iterator[sa.Connection]:
        try:
            if not self._prepared:
                with self._database.connect(writing=True) as connection:
                    _make_tables(connection)
                self._prepared = True
            with self._database.connect(writing=writing) as connection:
                yield connection
        except StoreUnavailable:
            self._prepared = False  # it may come back as another, empty database
            raise

    def _match(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(_SETS.c.space == self._space, _SETS.c.name == name)

    def _read_state(self, connection: sa.Connection) -> StoreState:
        revision: int = connection.execute(sa.select(_STATE.c.revision)).scalar_one()
        return StoreState(revision, self._database.connections)

    def _find(self, connection: sa.Connection, name: str) -> SetVersion | None:
        query = sa.select(_SETS.c.version, _SETS.c.digest).where(self._match(name))
        row = connection.execute(query).one_or_none()
        return None if row is None else SetVersion(*row)

    def _lock(self, connection: sa.Connection) -> int:
        # One writer at a time, so that revisions are committed in order.
        query = sa.select(_STATE.c.revision).with_for_update()
        revision: int = connection.execute(query).scalar_one()
        return revision

    def _check_limits(self, connection: sa.Connection, definition: Definition) -> None:
        limits, count = self._limits, len(definition.names)
        check_size(count, limits.labels_per_set)
        # A set counts once, however many spaces have it.
        others = (
            sa.select(sa.func.max(_SETS.c.num_labels).label("count"))
            .where(_SETS.c.name != definition.name)
            .group_by(_SETS.c.name)
            .subquery()
        )
        total = sa.func.coalesce(sa.func.sum(others.c.count), 0)
        query = sa.select(sa.func.count(), total).select_from(others)
        sets, labels = connection.execute(query).one()
        if sets + 1 > limits.sets or labels + count > limits.labels:
            raise TooManyLabelSets(sets=limits.sets, labels=limits.labels)


def check_version(name: str, found: SetVersion | None, if_version: int | None) -> None:
    """Raises `LabelSetChanged` unless `found` is in the version `if_version`; None allows any."""
    allowed = (None, ABSENT) if found is None else (None, PRESENT, found.version)
    if if_version not in allowed:
        raise LabelSetChanged(name, None if found is None else str(found.version))


def _find_same(
    definition: Definition, found: SetVersion | None, replace: bool, if_version: int | None
) -> int | None:
    check_version(definition.name, found, if_version)
    if found is None:
        return None
    if found.digest == definition.digest:
        return found.version
    if not replace:
        raise LabelSetExists(definition.name)
    return None


def _make_tables(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Processes that start together would make the tables twice.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    _metadata.create_all(connection)
    version = connection.execute(sa.select(_STATE.c.schema_version)).scalar_one_or_none()
    if version is None:
        first = {"id": 1, "schema_version": SCHEMA_VERSION, "revision": 0}
        connection.execute(sa.insert(_STATE).values(**first))
    elif version != SCHEMA_VERSION:
        raise StoreIncompatible(
            f"label_store {format_address(connection.engine.url)}: schema version {version}, this "
            f"service has {SCHEMA_VERSION}"
        )


def _encode_row(definition: Definition, embeddings: Embeddings) -> dict[str, object]:
    columns: dict[str, Sequence[object]] = {
        "names": definition.names,
        "prompts": definition.prompts,
        "thresholds": definition.thresholds,
        "given": definition.given,
    }
    if (own := definition.calibration) is not None:
        columns["calibration"] = (own.scale, own.shift)
    return {
        "name": definition.name,
        "num_labels": len(definition.names),
        "digest": definition.digest,
        "labels": json.dumps(columns),
        "embeddings": np.ascontiguousarray(embeddings, "<f4").data.cast("B"),
    }


def _decode_row(row: sa.Row[Any]) -> StoreEntry:
    try:
        columns: dict[str, Any] = {
            name: tuple(values) for name, values in json.loads(row.labels).items()
        }
        own = columns.pop("calibration", None)
        calibration = None if own is None else Calibration(scale=own[0], shift=own[1])
        count = len(columns["names"])
        embeddings = np.frombuffer(row.embeddings, "<f4").reshape(count, -1).astype(np.float32)
        definition = Definition(
            name=row.name,
            embeddings=embeddings[list(columns["given"])],
            calibration=calibration,
            **columns,
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InvalidLabelSet(_DAMAGED) from error
    if definition.digest != row.digest:
        raise InvalidLabelSet(_DAMAGED)
    return StoreEntry(definition, embeddings, row.version)
