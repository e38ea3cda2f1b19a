"""Conditions: which version of a label set a client has seen (RFC 9110, section 13).

In: the headers `If-Match` and `If-None-Match`. Out: the version to demand, or an error. A set's
entity tag is its version in quotes.
"""

from __future__ import annotations

import re

from starlette.requests import Request

from service.errors import LabelSetChanged
from service.labels.catalogue import Catalogue
from service.labels.label_set import LabelSet
from service.labels.store.order import ABSENT, PRESENT

_TAG = re.compile(r'(W/)?"([^"]*)"', re.IGNORECASE)


def make_tag(labels: LabelSet) -> str:
    """Returns the entity tag of a set."""
    return f'"{labels.version}"'


def demand_version(request: Request, catalogue: Catalogue, name: str) -> int | None:
    """Returns the version that a write has to find; None where any or none will do.

    `ABSENT` is none, `PRESENT` is any.

    Raises:
        LabelSetChanged: the set is in none of the versions of `If-Match`, or in one of
            `If-None-Match`, where `*` is every version.
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
    if current.version not in _list_strong_tags(condition):
        raise LabelSetChanged(name)
    return None if current.read_only else int(current.version)


def is_known(request: Request, labels: LabelSet) -> bool:
    """Returns whether the client already holds this version of the set."""
    condition = _read_list(request, "if-none-match") or ""
    return condition == "*" or labels.version in _list_tags(condition)


def _read_list(request: Request, name: str) -> str | None:
    """Returns a condition, whose lines are one list; None where there is none."""
    lines = [line.strip() for line in request.headers.getlist(name)]
    if "*" in lines:
        return "*"
    return ", ".join(lines) if lines else None


def _list_tags(condition: str) -> list[str]:
    return [tag for _, tag in _TAG.findall(condition)]


def _list_strong_tags(condition: str) -> list[str]:
    return [tag for weak, tag in _TAG.findall(condition) if not weak]
