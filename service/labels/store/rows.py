"""Rows: how the store's database holds label sets.

In: definitions with embeddings. Out: the values of a row, and the same back from a row. The tables
are made here as well. Next: `store.py`, which reads and writes them in transactions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from service.engine.heads import Embeddings
from service.errors import InvalidLabelSet, StoreIncompatible
from service.labels.definition import Definition
from service.labels.store.database import name_place

SCHEMA_VERSION = 1
_ADVISORY_LOCK = 0x6D6C6465636F6465  # "mldecode": the number is anyone's, ours by this name

_metadata = sa.MetaData()
# Numbers and hashes are compared byte by byte: a database may have any collation.
STATE = sa.Table(
    "label_store",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
)
SETS = sa.Table(
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


def make_tables(connection: sa.Connection) -> None:
    """Makes the tables where they are not there, in the transaction of `connection`.

    Raises:
        StoreIncompatible: there are tables of another schema version.
    """
    if connection.dialect.name == "postgresql":
        # Processes that start together would make the tables twice.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    _metadata.create_all(connection)
    version = connection.execute(sa.select(STATE.c.schema_version)).scalar_one_or_none()
    if version is None:
        first = {"id": 1, "schema_version": SCHEMA_VERSION, "revision": 0}
        connection.execute(sa.insert(STATE).values(**first))
    elif version != SCHEMA_VERSION:
        place = name_place(connection.engine.url)
        raise StoreIncompatible(
            f"label_store {place}: schema version {version}, this service has {SCHEMA_VERSION}"
        )


def encode_set(definition: Definition, embeddings: Embeddings) -> dict[str, object]:
    """Returns the values of a set's row that come from the set itself."""
    columns = {
        "names": definition.names,
        "prompts": definition.prompts,
        "thresholds": definition.thresholds,
        "given": definition.given,
    }
    return {
        "name": definition.name,
        "num_labels": len(definition.names),
        "digest": definition.digest,
        "labels": json.dumps(columns),
        "embeddings": np.ascontiguousarray(embeddings, "<f4").tobytes(),
    }


def decode_set(row: sa.Row[Any]) -> StoredSet:
    """Returns the set of a row.

    Raises:
        InvalidLabelSet: the row is damaged.
    """
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
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InvalidLabelSet("Its row is damaged") from error
    if definition.digest != row.digest:
        raise InvalidLabelSet("Its row is damaged")
    return StoredSet(definition, embeddings, row.version)
