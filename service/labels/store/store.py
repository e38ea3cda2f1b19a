"""The label store: the sets that clients registered, with their embeddings, in a database.

Every write raises one revision number, which becomes the version of the written set, so that other
processes detect changes with one small query. What labels learn from photos has a table of its own:
the row of a large set is megabytes. All methods block.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as replace_fields
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from service import errors
from service.bundle.card import Calibration
from service.engine.heads import Embeddings
from service.labels.definition import Definition, check_size
from service.labels.store.database import Database
from service.labels.words import pack_words

ABSENT = 0
"""`if_version` of a set that must not exist; the first revision is 1."""
PRESENT = -1
"""`if_version` of a set that must exist, in any version."""

SCHEMA_VERSION = 1
_DAMAGED = "Its row in the database is damaged: register the set again"
_SLACK = 24  # most characters of a threshold
_ADVISORY_LOCK = 0x6D6C6465636F6465  # any number: "mldecode"

logger = logging.getLogger(__name__)

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
_LESSONS = sa.Table(  # of every kind
    "learnt_labels",
    _metadata,
    sa.Column("encoder", sa.String(64), primary_key=True),  # a key of `find_kinds`
    sa.Column("set_name", sa.String(100), primary_key=True),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("lesson", sa.LargeBinary, nullable=False),  # empty if it was deleted
    sa.Index("learnt_labels_of_set", "set_name", "version"),
)
# Versions before 1.2 do not know it, and keep what it has.
_WORDS = sa.Table(
    "label_words",
    _metadata,
    sa.Column("set_name", sa.String(100), primary_key=True),
    sa.Column("words", sa.Text, nullable=False),  # of `pack_words`
)
_ADDED = (_LESSONS, _WORDS)  # since 1.0
# Unlike the value, its length reads no other pages.
_HAS_LESSON = sa.func.length(_LESSONS.c.lesson) > 0
_LAST_LESSON = (
    sa.select(sa.func.coalesce(sa.func.max(_LESSONS.c.version), 0))
    .where(_LESSONS.c.set_name == _SETS.c.name)
    .scalar_subquery()
)
_VERSION = sa.case((_SETS.c.version < _LAST_LESSON, _LAST_LESSON), else_=_SETS.c.version)
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
    """A set with the embeddings of all labels, float32 [L, E]; E is 0 without texts."""

    definition: Definition
    embeddings: Embeddings
    version: int


class WriteResult(NamedTuple):
    """What a write has done."""

    version: int  # of the set
    created: bool = False  # whether the set's name is new
    added: int = 0  # photos that a label had not learnt from
    entry: StoreEntry | None = None  # the set that a new label was appended to, with the label
    digest: str | None = None  # of a set that `calibrate` has changed


class LessonRow(NamedTuple):
    """What a label has learnt in one way, with the photos' embeddings of an encoder."""

    key: str  # of the kind and the encoder
    label: str
    content: bytes | None  # None if it was not asked for


class Limits(NamedTuple):
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
        self.database = database
        self._space = space
        self._limits = limits
        self._prepared = False
        self._tables = frozenset[str]()  # old stores that cannot be changed lack some

    def read_state(self) -> StoreState:
        """Returns the current state."""
        with self._connect() as connection:
            return self._read_state(connection)

    def read_versions(self, name: str | None = None) -> tuple[StoreState, dict[str, SetVersion]]:
        """Returns the state, and each set's version or that of one, as of this state or later."""
        with self._connect() as connection:
            query = sa.select(_SETS.c.name, self._version, _SETS.c.digest)
            state = self._read_state(connection)
            rows = connection.execute(query.where(self._match(name)))
            return state, {entry: SetVersion(version, digest) for entry, version, digest in rows}

    def list_others(self) -> dict[str, str]:
        """Returns name -> space of sets that others have in a newer version, or only they have."""
        ours = _SETS.alias()
        has_newer = ours.c.version > _SETS.c.version
        known = sa.exists().where(ours.c.space == self._space, ours.c.name == _SETS.c.name)
        query = (
            sa.select(_SETS.c.name, _SETS.c.space)
            .where(_SETS.c.space != self._space, ~known.where(has_newer))
            .order_by(_SETS.c.version)
        )
        with self._connect() as connection:
            if sa.inspect(connection).has_table("deleted_label_sets"):  # of 1.0
                query = query.where(_NOT_DELETED)
            return {row.name: row.space for row in connection.execute(query)}

    def read(self, name: str, space: str | None = None) -> StoreEntry | None:
        """Returns a set, of another space if given, or None. Raises `InvalidLabelSet`."""
        with self._connect() as connection:
            return self._read(connection, name, space)

    def read_words(self, name: str) -> str:
        """Returns the words of a set's labels as JSON of `pack_words`, or nothing."""
        with self._connect() as connection:
            return self._read_words(connection, name)

    def read_lessons(
        self, name: str, keys: Collection[str], after: int | None = None
    ) -> tuple[LessonRow, ...]:
        """Returns a set's lessons; reads those of `keys` and versions above `after` only."""
        wanted: sa.ColumnElement[bool] = _LESSONS.c.encoder.in_(keys)
        if after is not None:
            wanted &= _LESSONS.c.version > after
        lesson = sa.case((wanted, _LESSONS.c.lesson))
        query = sa.select(_LESSONS.c.encoder, _LESSONS.c.label, lesson)
        with self._connect() as connection:
            if _LESSONS.name not in self._tables:
                return ()
            rows = connection.execute(query.where(_LESSONS.c.set_name == name, _HAS_LESSON))
            return tuple(LessonRow(*row) for row in rows)

    def check_room(self, name: str, count: int) -> None:
        """Checks, as `write` does, that a set of `count` labels can be written."""
        with self._connect() as connection:
            self.database.check_writable(connection)
            self._demand(_LESSONS)
            self._check_limits(connection, name, count)

    def check(self, definition: Definition, *, replace: bool, if_version: int | None) -> int | None:
        """Runs the checks of `write`; returns the version if the same set is there already."""
        with self._connect() as connection:
            self.database.check_writable(connection)
            known = self._find(connection, definition.name, if_version)
            version = self._find_same(connection, definition, known, replace)
            if version is None:
                self._check_limits(connection, definition.name, len(definition.names))
            return version

    def write(  # noqa: PLR0913 - options are keywords
        self,
        definition: Definition,
        embeddings: Embeddings,
        *,
        replace: bool,
        if_version: int | None = None,
        keys: Collection[str] = (),
        lessons: Sequence[LessonRow] = (),
    ) -> WriteResult:
        """Writes a set with embeddings [L, E] durably, unless the same set is there already.

        Labels that stay keep their lessons; `lessons` replace all of these `keys`. `if_version` is
        a version, `ABSENT` or `PRESENT`. Raises `LabelSetChanged`, `LabelSetExists` without
        `replace`, `InvalidLabelSet` or `TooManyLabelSets`.
        """
        name = definition.name
        with self._connect(writing=True) as connection:
            version, known = self._begin_write(connection, name, if_version)
            same = self._find_same(connection, definition, known, replace)
            if same is not None:
                return WriteResult(same)
            self._put(connection, definition, embeddings, version)
            self._put_words(connection, name, _pack_words(definition))
            if lessons:
                self._demand(_LESSONS)
                for key in keys:
                    connection.execute(sa.delete(_LESSONS).where(_match_lessons(key, name)))
                rows = [(key, name, label, version, content) for key, label, content in lessons]
                connection.execute(sa.insert(_LESSONS).values(rows))
            return WriteResult(version, created=known is None)

    def calibrate(self, definition: Definition, known: SetVersion) -> WriteResult:
        """Writes thresholds and calibration of the set of this version and digest.

        Its embeddings are not written: those of 50,000 labels are 77 MB. Raises `LabelSetChanged`.
        """
        name, chosen = definition.name, self._match(definition.name)
        with self._connect(writing=True) as connection:
            version, found = self._begin_write(connection, name, known.version)
            if found != known:  # a backup that was restored
                raise errors.LabelSetChanged(name, str(known.version))
            digest = self._hash(connection, definition)
            size = connection.execute(sa.select(sa.func.length(_SETS.c.labels)).where(chosen))
            labels = _pack_labels(definition, size.scalar_one())
            row = {"version": version, "digest": digest, "labels": labels}
            connection.execute(sa.update(_SETS).where(chosen).values(row))
            connection.execute(sa.update(_STATE).values(revision=version))
            return WriteResult(version, digest=digest)

    def learn(  # noqa: PLR0913 - names and options are keywords
        self,
        name: str,
        label: str,
        key: str,
        change: Callable[[bytes | None], tuple[bytes, int]],
        *,
        embedding: Embeddings | None,
        forget: Collection[str] = (),
        if_version: int | None,
    ) -> WriteResult:
        """Changes a lesson of a label durably, and deletes its lessons of the keys `forget`.

        `change` takes its content so far, and returns the next and how many photos are new. A
        missing label or set is made, with the `embedding` [1, E] or without texts. Raises
        `LabelSetChanged` if a set of texts lacks both, and as `write` and `change`.
        """
        with self._connect(writing=True) as connection:
            version, known = self._begin_write(connection, name, if_version)
            query = sa.select(_SETS.c.labels).where(self._match(name))
            entry = None
            # To read the whole row takes 0.3 s for 10,000 labels.
            if label not in _read_names(connection.execute(query).scalar_one_or_none()):
                old = self._read(connection, name)
                definition, embeddings = _append(old, name, label, embedding)
                self._put(connection, definition, embeddings, version)
                entry = StoreEntry(definition, embeddings, version)
            chosen = _match_lessons(key, name, label)
            query = sa.select(_LESSONS.c.lesson).where(chosen)
            known_content = connection.execute(query).scalar_one_or_none()
            content, added = change(None if key in forget else known_content or None)
            if added:
                row = (key, name, label, version, content)
                for each in (key, *forget):
                    connection.execute(sa.delete(_LESSONS).where(_match_lessons(each, name, label)))
                connection.execute(sa.insert(_LESSONS).values(row))
                connection.execute(sa.update(_STATE).values(revision=version))
            return WriteResult(version, known is None, added, entry)

    def delete_lessons(self, name: str, label: str, if_version: int | None = None) -> WriteResult:
        """Deletes all lessons of a label, of all kinds and encoders.

        Raises `NoExamples`, and as `delete`.
        """
        with self._connect(writing=True) as connection:
            self._demand(_LESSONS)
            version = self._begin_change(connection, name, if_version)
            chosen = sa.and_(_match_lessons(None, name, label), _HAS_LESSON)
            change = sa.update(_LESSONS).where(chosen).values(version=version, lesson=b"")
            if not connection.execute(change).rowcount:
                raise errors.NoExamples(label, name)
            connection.execute(sa.update(_STATE).values(revision=version))
            return WriteResult(version)

    def delete(self, name: str, if_version: int | None = None) -> WriteResult:
        """Deletes a set durably, in all spaces: else the next bundle would encode it again.

        Raises `LabelSetNotFound` or `LabelSetChanged`.
        """
        with self._connect(writing=True) as connection:
            version = self._begin_change(connection, name, if_version)
            connection.execute(sa.delete(_SETS).where(_SETS.c.name == name))
            if _LESSONS.name in self._tables:
                connection.execute(sa.delete(_LESSONS).where(_match_lessons(None, name)))
            self._put_words(connection, name, "")
            connection.execute(sa.update(_STATE).values(revision=version))
            return WriteResult(version)

    def move_to(self, database: Database) -> None:
        """Uses another database from now on."""
        self.database.close()
        self.database = database.share()

    def close(self) -> None:
        """Closes the connections."""
        self.database.close()

    @contextmanager
    def _connect(self, *, writing: bool = False) -> Iterator[sa.Connection]:
        try:
            if not self._prepared:
                with self.database.connect(writing=True) as connection:
                    _make_tables(connection, self.database)
                    missing = {table.name for table in _ADDED} - _find_tables(connection)
                if missing:
                    logger.warning(
                        "label_store: tables that are missing, or that this user may not read: %s",
                        errors.list_names(sorted(missing)),
                    )
                self._prepared = True
            with self.database.connect(writing=writing) as connection:
                if len(self._tables) < len(_ADDED):  # another process may make them
                    self._tables = _find_tables(connection)
                yield connection
        except errors.StoreUnavailable:
            self._prepared = False  # it may come back as another, empty database
            raise

    def _demand(self, table: sa.Table) -> None:
        if table.name not in self._tables:
            raise errors.StoreReadOnly(
                f"label_store: there is no table {table.name}, or this user may not read it: start "
                "the service once with a user of the database that may create tables, and grant it"
            )

    def _match(self, name: str | None, space: str | None = None) -> sa.ColumnElement[bool]:
        chosen = _SETS.c.space == (space or self._space)
        return chosen if name is None else sa.and_(chosen, _SETS.c.name == name)

    def _read_state(self, connection: sa.Connection) -> StoreState:
        revision: int = connection.execute(sa.select(_STATE.c.revision)).scalar_one()
        return StoreState(revision, self.database.connections)

    def _find(
        self, connection: sa.Connection, name: str, if_version: int | None
    ) -> SetVersion | None:
        query = sa.select(self._version, _SETS.c.digest).where(self._match(name))
        row = connection.execute(query).one_or_none()
        known = None if row is None else SetVersion(*row)
        check_version(name, known and known.version, if_version)
        return known

    @property
    def _version(self) -> sa.ColumnElement[int]:
        return _VERSION if _LESSONS.name in self._tables else _SETS.c.version

    def _read(
        self, connection: sa.Connection, name: str, space: str | None = None
    ) -> StoreEntry | None:
        query = sa.select(_SETS, self._version.label("latest")).where(self._match(name, space))
        row = connection.execute(query).one_or_none()
        return None if row is None else _decode_row(row)

    def _read_words(self, connection: sa.Connection, name: str) -> str:
        if _WORDS.name not in self._tables:
            return ""
        query = sa.select(_WORDS.c.words).where(_WORDS.c.set_name == name)
        return connection.execute(query).scalar_one_or_none() or ""

    def _put_words(self, connection: sa.Connection, name: str, text: str) -> None:
        if text == self._read_words(connection, name):
            return
        self._demand(_WORDS)
        connection.execute(sa.delete(_WORDS).where(_WORDS.c.set_name == name))
        if text:
            connection.execute(sa.insert(_WORDS).values(set_name=name, words=text))

    def _find_same(
        self,
        connection: sa.Connection,
        definition: Definition,
        known: SetVersion | None,
        replace: bool,
    ) -> int | None:
        if known is None:
            return None
        words = self._read_words(connection, definition.name)
        has_same = known.digest == definition.digest and words == _pack_words(definition)
        if has_same and not definition.lessons:
            return known.version
        if not replace:
            raise errors.LabelSetExists(definition.name)
        return None

    def _put(
        self,
        connection: sa.Connection,
        definition: Definition,
        embeddings: Embeddings,
        version: int,
    ) -> None:
        """Writes a set's row and deletes lessons of labels that it had."""
        name = definition.name
        self._check_limits(connection, name, len(definition.names))
        learnt = sa.select(_LESSONS.c.label).where(_match_lessons(None, name)).distinct()
        if _LESSONS.name in self._tables and (removed := {*connection.execute(learnt).scalars()}):
            query = sa.select(_SETS.c.space, _SETS.c.labels).where(_SETS.c.name == name)
            rows = {row.space: row.labels for row in connection.execute(query)}
            # Lessons of an unknown set are left from a service of a version without lessons.
            if rows:
                removed &= _read_names(rows.get(self._space)).difference(definition.names)
            for label in removed:
                connection.execute(sa.delete(_LESSONS).where(_match_lessons(None, name, label)))
        connection.execute(sa.delete(_SETS).where(self._match(name)))
        row = sa.insert(_SETS).values(
            space=self._space,
            name=name,
            version=version,
            num_labels=len(definition.names),
            digest=definition.digest,
            labels=_pack_labels(definition),
            embeddings=np.ascontiguousarray(embeddings, "<f4").ravel().view(np.uint8).data,
        )
        connection.execute(row)
        connection.execute(sa.update(_STATE).values(revision=version))

    def _hash(self, connection: sa.Connection, definition: Definition) -> str:
        """Returns the digest of a set with its stored embeddings, which are freed: 77 MB."""
        if not definition.given:
            return definition.digest
        query = sa.select(_SETS.c.embeddings).where(self._match(definition.name))
        rows = np.frombuffer(connection.execute(query).scalar_one(), "<f4")
        embeddings = _choose(rows.reshape(len(definition.names), -1), definition.given)
        return replace_fields(definition, embeddings=embeddings).digest

    def _begin_write(
        self, connection: sa.Connection, name: str, if_version: int | None
    ) -> tuple[int, SetVersion | None]:
        # One writer at a time, so that revisions are committed in order.
        query = sa.select(_STATE.c.revision + 1).with_for_update()
        return connection.execute(query).scalar_one(), self._find(connection, name, if_version)

    def _begin_change(self, connection: sa.Connection, name: str, if_version: int | None) -> int:
        version, known = self._begin_write(connection, name, if_version)
        if known is None:
            raise errors.LabelSetNotFound(name)
        return version

    def _check_limits(self, connection: sa.Connection, name: str, count: int) -> None:
        limits = self._limits
        check_size(count, limits.labels_per_set)
        # A set counts once, however many spaces have it.
        others = (
            sa.select(sa.func.max(_SETS.c.num_labels).label("count"))
            .where(_SETS.c.name != name)
            .group_by(_SETS.c.name)
            .subquery()
        )
        total = sa.func.coalesce(sa.func.sum(others.c.count), 0)
        query = sa.select(sa.func.count(), total).select_from(others)
        sets, labels = connection.execute(query).one()
        if sets + 1 > limits.sets or labels + count > limits.labels:
            raise errors.TooManyLabelSets(limits.sets, limits.labels)


def check_version(name: str, version: int | None, if_version: int | None) -> None:
    """Raises `LabelSetChanged` unless a set's `version`, None without a set, is the expected one.

    `if_version` is a version, `ABSENT`, `PRESENT` or None, which allows any.
    """
    allowed = (None, ABSENT) if version is None else (None, PRESENT, version)
    if if_version not in allowed:
        raise errors.LabelSetChanged(name, None if version is None else str(version))


def _pack_labels(definition: Definition, size: int = 0) -> str:
    """Returns the JSON of a row, of `size` characters or, if that is too few, with slack."""
    columns: dict[str, Sequence[object]] = {
        "names": definition.names,
        "prompts": definition.prompts,
        "given": definition.given,
    }
    if (calibration := definition.calibration) is not None:
        columns["calibration"] = (calibration.scale, calibration.shift)
    columns["thresholds"] = definition.thresholds  # last: all that follows a change is written
    labels = json.dumps(columns, separators=(",", ":"))
    most = len(labels) + _SLACK * (len(definition.names) + 2)
    return labels.ljust(most if len(labels) > size else size)


def _pack_words(definition: Definition) -> str:
    return pack_words(definition.words) if definition.words else ""


def _choose(embeddings: Embeddings, given: Sequence[int]) -> Embeddings:
    return embeddings if len(given) == len(embeddings) else embeddings[list(given)]


def _read_names(labels: str | None) -> frozenset[str]:
    """Returns the names of a row's labels, none of a damaged row."""
    with suppress(ValueError, KeyError, TypeError):
        return frozenset(json.loads(labels or "{}")["names"])
    return frozenset()


def _append(
    entry: StoreEntry | None, name: str, label: str, embedding: Embeddings | None
) -> tuple[Definition, Embeddings]:
    if entry is None:
        row = np.zeros((1, 0), np.float32) if embedding is None else embedding
        return Definition(name, (label,), (None,), (None,)), row
    old, row = entry.definition, entry.embeddings[:1]
    if row.shape[1]:
        if embedding is None:  # the label was deleted meanwhile
            raise errors.LabelSetChanged(name, str(entry.version))
        row = embedding
    definition = replace_fields(
        old,
        names=(*old.names, label),
        prompts=(*old.prompts, None),
        thresholds=(*old.thresholds, None),
    )
    return definition, np.concatenate((entry.embeddings, row))


def _match_lessons(*key: str | None) -> sa.ColumnElement[bool]:
    """Matches key, set and label; None and missing ones match all."""
    pairs = zip(_LESSONS.primary_key, key, strict=False)
    return sa.and_(*(column == value for column, value in pairs if value is not None))


def _make_tables(connection: sa.Connection, database: Database) -> None:
    """Makes the tables, in old stores those that were added, if it may."""
    may_create = True
    if connection.dialect.name == "postgresql":
        # Processes that start together would make the tables twice.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        query = sa.select(sa.func.has_schema_privilege(sa.func.current_schema(), "CREATE"))
        may_create = connection.execute(query).scalar_one()
    with suppress(errors.StoreReadOnly):
        database.check_writable(connection)
        if may_create:
            _metadata.create_all(connection, tables=_ADDED)
    _metadata.create_all(connection, tables=[_STATE, _SETS])
    version = connection.execute(sa.select(_STATE.c.schema_version)).scalar_one_or_none()
    if version is None:
        first = {"id": 1, "schema_version": SCHEMA_VERSION, "revision": 0}
        connection.execute(sa.insert(_STATE).values(**first))
    elif version != SCHEMA_VERSION:
        raise errors.StoreIncompatible(
            f"label_store {database.address}: schema version {version}, this "
            f"service has {SCHEMA_VERSION}"
        )


def _find_tables(connection: sa.Connection) -> frozenset[str]:
    """Returns the names of the added tables that are there and may be read."""
    inspector = sa.inspect(connection)
    names = {table.name for table in _ADDED if inspector.has_table(table.name)}
    if connection.dialect.name == "postgresql":  # another user may have made them
        may_read = ((n, sa.select(sa.func.has_table_privilege(n, "SELECT"))) for n in names)
        names = {name for name, query in may_read if connection.execute(query).scalar_one()}
    return frozenset(names)


def _decode_row(row: sa.Row[Any]) -> StoreEntry:
    try:
        columns: dict[str, Any] = {
            name: tuple(values) for name, values in json.loads(row.labels).items()
        }
        pair = columns.pop("calibration", None)
        calibration = None if pair is None else Calibration(scale=pair[0], shift=pair[1])
        count = len(columns["names"])
        embeddings = np.frombuffer(row.embeddings, "<f4").reshape(count, -1)
        embeddings = embeddings.astype(np.float32, copy=False)
        definition = Definition(
            name=row.name,
            embeddings=_choose(embeddings, columns["given"]),
            calibration=calibration,
            **columns,
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise errors.InvalidLabelSet(_DAMAGED) from error
    if definition.digest != row.digest:
        raise errors.InvalidLabelSet(_DAMAGED)
    return StoreEntry(definition, embeddings, row.latest)
