"""Tags of photos: in their files, XMP sidecars (which need lxml) and tables; knows no model."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ROOT = "ml-decoder"
"""Default root of own tags; those of versions without the memory are known by it."""
SEPARATOR = re.compile("[/|]")
"""Of levels; in a name that is written it becomes `-`."""
Tag = tuple[str, ...]
"""A tag as its levels: `("animals", "cat")`; in a flat field one level."""


class PhotoTags(NamedTuple):
    """The tags of one photo, by their owner."""

    users: tuple[Tag, ...] = ()  # without duplicates
    rejected: tuple[str, ...] = ()  # labels that this program wrote and the user deleted
    kept: tuple[str, ...] = ()  # names that this program wrote and that are still there
    labels: Mapping[str, str] = MappingProxyType({})  # of these, if they have other names
