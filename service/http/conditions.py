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
from service.labels.store import ABSENT

_TAG = re.compile(r'(W/)?"([^"]*)"', re.IGNORECASE)


def make_tag(labels: LabelSet) -> str:
    """Returns the entity tag of a set."""
    return f'"{labels.version}"'


def demand_version(request: Request, catalogue: Catalogue, name: str) -> int | None:
    """Returns the version that a write has to find, `ABSENT` for none; None where any will do.

    Raises:
        LabelSetChanged: the set is in none of the versions of `If-Match`, or in one of
            `If-None-Match`, where `*` is every version.
    """
    current = catalogue.get(name)
    if current is not None and is_known(request, current):
        raise LabelSetChanged(name)
    condition = request.headers.get("if-match")
    if condition is None:
        return ABSENT if request.headers.get("if-none-match", "").strip() == "*" else None
    if current is None:
        raise LabelSetChanged(name)
    if condition.strip() != "*" and current.version not in _list_strong_tags(condition):
        raise LabelSetChanged(name)
    return None if current.read_only else int(current.version)


def is_known(request: Request, labels: LabelSet) -> bool:
    """Returns whether the client already holds this version of the set."""
    condition = request.headers.get("if-none-match", "")
    return condition.strip() == "*" or labels.version in _list_tags(condition)


def _list_tags(condition: str) -> list[str]:
    return [tag for _, tag in _TAG.findall(condition)]


def _list_strong_tags(condition: str) -> list[str]:
    return [tag for weak, tag in _TAG.findall(condition) if not weak]
