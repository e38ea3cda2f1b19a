"""An order: a set to write, and what it may be written over.

In: a definition and what a client demands of the set of its name. Out: whether that set is this one
already, or why it may not be written. Next: `store.py`, which asks in the transaction of the write.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.errors import LabelSetChanged, LabelSetExists
from service.labels.definition import Definition

ABSENT = 0
"""The version to demand of a set that must not be there: the first revision is 1."""
PRESENT = -1
"""The version to demand of a set that must be there, in whatever version."""

Kept = tuple[int, str]
"""Version and digest of a set that is in the store."""


@dataclass(frozen=True, eq=False)
class Order:
    """A set to write.

    Attributes:
        definition: the set.
        replace: whether it may replace another set of its name.
        if_version: write only over this version; `ABSENT` writes only over none, `PRESENT` only
            over some.
    """

    definition: Definition
    replace: bool
    if_version: int | None = None

    def find_same(self, found: Kept | None) -> int | None:
        """Returns the version in which the set is there already; None where it is to be written.

        Args:
            found: the set of its name; None where there is none.

        Raises:
            LabelSetChanged: the set is not in the version `if_version`.
            LabelSetExists: another set has the name, and `replace` is false.
        """
        check_version(self.definition.name, found, self.if_version)
        version, digest = (ABSENT, None) if found is None else found
        if digest == self.definition.digest:
            return version
        if found is not None and not self.replace:
            raise LabelSetExists(self.definition.name)
        return None


def check_version(name: str, found: Kept | None, if_version: int | None) -> None:
    """Does nothing where a set is in the version that is demanded.

    Args:
        name: of the set.
        found: the set in the store; None where there is none.
        if_version: a version, `ABSENT` or `PRESENT`; None demands nothing.

    Raises:
        LabelSetChanged: it is not.
    """
    good = (None, ABSENT) if found is None else (None, PRESENT, found[0])
    if if_version not in good:
        raise LabelSetChanged(name)
