"""Reads a `Question` from the query string and the fields of the body.

Both take the same parameters, checked alike; a parameter in both must have the same value.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import lru_cache
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from service.errors import RepeatedField
from service.labels.definition import check_candidates
from service.labels.question import Question, check_question

LIST_PARAMETERS = frozenset({"include", "exclude", "label_set", "candidate_labels"})
SINGLE_PARAMETERS = frozenset(Question.model_fields) - LIST_PARAMETERS

_CACHED_BYTES = 200
# Candidate labels of so many combining marks, the slowest to normalise, take 1 ms.
_QUICK_CHARACTERS = 2000


def read_parameters(request: Request) -> Question:
    """Reads the query string, for which FastAPI would need 0.5 ms; raises RequestError."""
    text: bytes = request.scope["query_string"]
    # Most clients send the same few query strings; long ones would only fill the cache.
    return _read_cached(text) if len(text) <= _CACHED_BYTES else _read_query_string(text)


def _read_query_string(text: bytes) -> Question:
    query: dict[str, list[str]] = defaultdict(list)
    for name, value in QueryParams(text).multi_items():
        query[name].append(value)
    values: dict[str, Any] = {}
    for name, given in query.items():
        if name in SINGLE_PARAMETERS and len(given) > 1:
            raise RepeatedField(name)
        values[name] = given if name in LIST_PARAMETERS else given[0]
    return check_question(values, "query")


_read_cached = lru_cache(maxsize=256)(_read_query_string)


async def add_fields(query: Question, fields: dict[str, Any], max_candidates: int) -> Question:
    """Adds the parameters of a body, not yet checked, to those of the query string.

    Raises InvalidLabelSet for too many candidate labels, and RequestError for an invalid field or
    one that differs from the query string.
    """
    if not fields:
        return query
    candidates = fields.get("candidate_labels")
    if isinstance(candidates, list):
        check_candidates(candidates, max_candidates)
        characters = sum(len(name) for name in candidates if isinstance(name, str))
        if characters > _QUICK_CHARACTERS:
            return await asyncio.to_thread(_merge, query, fields)
    return _merge(query, fields)


def _merge(query: Question, fields: dict[str, Any]) -> Question:
    body = check_question(fields, "body")
    given = {name: value for name, value in query if value is not None}
    for name, value in given.items():
        if getattr(body, name) not in (None, value):
            raise RepeatedField(name)
    return body.model_copy(update=given)
