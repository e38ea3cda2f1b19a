"""Fixed sets: label sets of the bundle and of a folder, which never change.

In: definitions that were read at the start. Out: snapshots, encoded once. Next: `catalogue.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import InvalidLabelSet, LabelSetError, NoOpenHead, StartError
from service.labels.definition import Definition
from service.labels.encoding import Encoding
from service.labels.label_set import RESERVED_NAMES, LabelSet, Origin


@dataclass(frozen=True)
class FixedSet:
    """A set that comes with the bundle or from a folder, not yet encoded."""

    definition: Definition
    version: str
    origin: Origin


async def encode_fixed_set(entry: FixedSet, encoding: Encoding | None) -> LabelSet:
    """Returns the snapshot of a set.

    Raises:
        StartError: the set does not fit the bundle.
    """
    definition = entry.definition
    try:
        if encoding is None:
            raise NoOpenHead("the bundle has no open head")
        if definition.name in RESERVED_NAMES:
            raise InvalidLabelSet("The name is reserved")
        encoding.check(definition)
        queries = await encoding.project(await encoding.embed(definition))
    except LabelSetError as error:
        raise StartError(f"label set {definition.name}: {error}") from error
    return encoding.make_set(definition, queries, entry.version, entry.origin)
