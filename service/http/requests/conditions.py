"""`If-Match` and `If-None-Match` (RFC 9110, section 13); a set's tag is its version in quotes."""

from __future__ import annotations

import re

from starlette.requests import Request

from service.errors import LabelSetChanged
from service.labels.catalogue import Catalogue
from service.labels.label_set import LabelSet
from service.labels.store.order import ABSENT, PRESENT

_TAG = re.compile(r'(W/)?"([^"]*)"', re.IGNORECASE)


def make_tag(labels: LabelSet) -> str:
    """Returns the entity tag."""
    return f'"{labels.version}"'


def demand_version(request: Request, catalogue: Catalogue, name: str) -> int | None:
    """Returns the version that a write must replace: `ABSENT`, `PRESENT`, or None for no condition.

    Raises:
        LabelSetChanged: `If-Match` does not list the set's version, or `If-None-Match` does; `*`
            lists every version.
    """
    current = catalogue.get(name)
    if current is not None and is_known(request, current):
        raise LabelSetChanged(name)
    condition = _read_list(request, "if-match")
    if condition is None:
        return ABSENT if _read_list(request, "if-none-match") == "*" else None
    if current is None:
        raise LabelSetChanged(name)
    if condition == "*":
        return PRESENT
    if current.version not in [tag for weak, tag in _TAG.findall(condition) if not weak]:
        raise LabelSetChanged(name)
    return None if current.read_only else int(current.version)


def is_known(request: Request, labels: LabelSet) -> bool:
    """Returns whether the client already has this version."""
    condition = _read_list(request, "if-none-match") or ""
    return condition == "*" or any(labels.version == tag for _, tag in _TAG.findall(condition))


def _read_list(request: Request, name: str) -> str | None:
    """Returns all lines of a header as one list; None without the header."""
    lines = [line.strip() for line in request.headers.getlist(name)]
    if "*" in lines:
        return "*"
    return ", ".join(lines) if lines else None
