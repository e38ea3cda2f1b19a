"""Reads a `Question` from query string and body; a parameter in both must be the same."""

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from service.errors import InvalidParameters, ProblemValue, RepeatedField, describe_unknown
from service.fields import is_utf8, validate
from service.labels.definition import check_candidates
from service.pipeline.served import ServedPipeline
from service.question import TWO_LIMITS, Question

LIST_PARAMETERS = frozenset(
    {"include", "exclude", "category", "parent", "label_set", "candidate_labels"}
)
SINGLE_PARAMETERS = frozenset(Question.model_fields) - LIST_PARAMETERS
NOT_UTF8 = "surrogateescape"
"""How bytes that are not UTF-8 are decoded for `read_texts`, which refuses them by name."""

_CACHED_BYTES = 200
# Normalising this many combining marks, the slowest characters, takes 1 ms.
_QUICK_CHARACTERS = 2000


def read_parameters(request: Request) -> Question:
    """Reads the query string; FastAPI would need 0.5 ms. Raises RequestError if it is invalid."""
    text: bytes = request.scope["query_string"]
    # Most clients send the same few query strings; long ones would only fill the cache.
    return _read_cached(text) if len(text) <= _CACHED_BYTES else _read_query_string(text)


async def refuse_unknown_names(request: Request) -> None:
    """Raises InvalidParameters for a name in the query string that is unknown or repeated."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        reason = "It is given more than once"
        if name not in known:
            reason = f"This name is {describe_unknown(name, known)}"
        elif len(request.query_params.getlist(name)) == 1:
            continue
        raise InvalidParameters([ProblemValue("query", name, reason)])


KNOWN_NAMES = Depends(refuse_unknown_names)


async def get_served(request: Request) -> ServedPipeline:
    """Returns the pipeline of the request's app. Async, so that FastAPI needs no thread for it."""
    served: ServedPipeline = request.app.state.served
    return served


Served = Annotated[ServedPipeline, Depends(get_served)]


def _read_query_string(text: bytes) -> Question:
    query: dict[str, list[str]] = defaultdict(list)
    escaped = text.decode("utf-8", NOT_UTF8)
    for name, value in parse_qsl(escaped, keep_blank_values=True, errors=NOT_UTF8):
        query[name].append(value)
    return validate(Question, read_texts(query, "query"), "query")


def read_texts(given: Mapping[str, list[str]], where: str) -> dict[str, Any]:
    """Returns the values of the texts of a query string or form, by name, not yet checked.

    An empty text is as if it were not sent. The text of a list that is given once is separated at
    its commas. Raises RequestError for a single parameter with two texts, or bytes not in UTF-8.
    """
    values: dict[str, Any] = {}
    for name, texts in given.items():
        if not is_utf8("".join([name, *texts])):
            shown = name.encode(errors="replace").decode()
            raise InvalidParameters([ProblemValue(where, shown, "Text should be UTF-8")])
        sent = [text for text in texts if text]
        if name in LIST_PARAMETERS:
            if sent:
                values[name] = _separate(sent[0]) if len(texts) == 1 else sent
        elif name not in SINGLE_PARAMETERS:
            # Of another model than `Question`, or unknown; its check refuses a list or takes it.
            values[name] = texts[0] if len(texts) == 1 else texts
        elif len(sent) > 1:
            raise RepeatedField(name)
        elif sent:
            values[name] = sent[0]
    return values


def _separate(text: str) -> list[str]:
    if "," not in text:
        return [text]
    # Only commas: the empty name is refused.
    return [name for part in text.split(",") if (name := part.strip())] or [""]


_read_cached = lru_cache(maxsize=256)(_read_query_string)


async def add_fields(query: Question, fields: dict[str, Any], served: ServedPipeline) -> Question:
    """Adds a body's unchecked parameters. Raises RequestError; InvalidLabelSet for too many."""
    if not fields:
        return query
    candidates = fields.get("candidate_labels")
    if isinstance(candidates, list):
        check_candidates(candidates, served.settings.max_candidate_labels)
        characters = sum(len(name) for name in candidates if isinstance(name, str))
        if characters > _QUICK_CHARACTERS:
            return await served.run_in_side_thread(_merge, query, fields)
    return _merge(query, fields)


def _merge(query: Question, fields: dict[str, Any]) -> Question:
    body = validate(Question, fields, "body")
    given = {name: value for name, value in query if value is not None}
    for name, value in given.items():
        if getattr(body, name) not in (None, value):
            raise RepeatedField(name)
    merged = body.model_copy(update=given)
    if merged.top_k is not None and merged.min_labels is not None:
        raise InvalidParameters([ProblemValue("body", "min_labels", TWO_LIMITS)])
    return merged
