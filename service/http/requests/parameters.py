"""Parameters: what a client asks of its images, from the query string and the body.

In: the query string and the fields of an `Upload`. Out: a `Question`. Both places take the
same parameters and check them the same way; a parameter in both has to say the same.
Next: `pipeline.py`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic.functional_validators import WrapValidator
from pydantic_core import PydanticCustomError
from starlette.datastructures import QueryParams
from starlette.requests import Request

from service.errors import InvalidParameters, RepeatedField, list_values
from service.labels.definition import NoTruth, check_candidates
from service.labels.question import Explain, Question, Threshold
from service.labels.text import LabelSetName, LabelText
from service.pipeline.explanation import MOST_EXPLAINED


def _check_threshold(value: object, check: ValidatorFunctionWrapHandler) -> Threshold:
    # One sentence instead of pydantic's one error for each member of the union.
    try:
        threshold: Threshold = check(value)
    except ValidationError as error:
        raise PydanticCustomError(
            "threshold", "Input should be a number from 0 to 1, or 'calibrated'"
        ) from error
    return threshold


def _check_explain(value: object, check: ValidatorFunctionWrapHandler) -> bool | Literal["overlay"]:
    try:
        asked: bool | Literal["overlay"] = check(value)
    except ValidationError as error:
        raise PydanticCustomError("explain", "Input should be true, false or 'overlay'") from error
    return asked


ItemT = TypeVar("ItemT")
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
# One error of a list says enough, and a list of errors could be millions.
Listed = Annotated[list[ItemT], Field(max_length=10_000, fail_fast=True)]
ThresholdParameter = Annotated[
    Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | Literal["calibrated"],
    NoTruth,
    WrapValidator(_check_threshold),
]
ExplainParameter = Annotated[bool | Literal["overlay"], WrapValidator(_check_explain)]


class Parameters(BaseModel):
    """The parameters of `/predict` and `/predict/batch`; None is `not given`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The examples are what the form of `/docs` is filled with: each has to suit any model.
    top_k: Annotated[int | None, NoTruth] = Field(
        default=None,
        ge=1,
        description="Most labels to answer with; more than there are means all of them. "
        "Without `threshold`: exactly the best `top_k`, whatever their scores.",
        examples=[5],
    )
    threshold: ThresholdParameter | None = Field(
        default=None,
        description="Answer with labels that score at least this much: a number from 0 to "
        "1 for every label, or `calibrated` for each label's own. Neither `top_k` nor "
        "`threshold` means `calibrated`.",
        examples=["calibrated"],
    )
    include: Listed[LabelName] | None = Field(
        default=None,
        description="Choose among these labels only; may be repeated.",
        examples=[[]],
    )
    exclude: Listed[LabelName] | None = Field(
        default=None,
        description="Never answer with these labels; may be repeated.",
        examples=[[]],
    )
    label_set: Listed[LabelSetName] | None = Field(
        default=None,
        description="Label sets to answer from; may be repeated. A label that stands in several "
        "is answered from the first. Without it: the default set.",
        examples=[[]],
    )
    candidate_labels: Listed[LabelText] | None = Field(
        default=None,
        description="Labels of this request alone, which the model need not have seen; may be "
        "repeated. Without `label_set` they are all there is to choose from.",
        examples=[[]],
    )
    min_version: Annotated[int | None, NoTruth] = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="Answer from label sets of this version or later, such as the one that a "
        "registration answered with.",
        examples=[0],
    )
    explain: ExplainParameter | None = Field(
        default=None,
        description="Show where in the image each label was found: `true` gives every label a "
        f"`map`, `overlay` also a picture to lay over the image. The best {MOST_EXPLAINED} labels "
        "of an image get theirs.",
        examples=[False],
    )


_EXPLAIN: dict[bool | str, Explain | None] = {False: None, True: "map", "overlay": "overlay"}
LIST_PARAMETERS = frozenset(
    name
    for name, info in Parameters.model_fields.items()
    if any(
        get_origin(getattr(kind, "__origin__", None)) is list for kind in get_args(info.annotation)
    )
)
SINGLE_PARAMETERS = frozenset(Parameters.model_fields) - LIST_PARAMETERS


_USUAL_BYTES = 200
# Of candidate labels: a millisecond's work, were they combining marks, whose normal form takes
# longest.
_QUICK_CHARACTERS = 2000


def read_parameters(request: Request) -> Parameters:
    """Reads the query string, which gives each parameter once, except those that are lists.

    FastAPI could do it, at the price of half a millisecond a request.

    Raises:
        InvalidParameters: a parameter is unknown, of the wrong type or out of range.
        RepeatedField: a parameter that is no list is given twice.
    """
    text: bytes = request.scope["query_string"]
    # Most clients ask the same every time; a long query would only fill the memory.
    read = _read_usual if len(text) <= _USUAL_BYTES else _read_query_string
    return read(text)


def _read_query_string(text: bytes) -> Parameters:
    query: dict[str, list[str]] = defaultdict(list)
    for name, value in QueryParams(text).multi_items():
        query[name].append(value)
    values: dict[str, Any] = {}
    for name, given in query.items():
        if name in SINGLE_PARAMETERS and len(given) > 1:
            raise RepeatedField(name)
        values[name] = given if name in LIST_PARAMETERS else given[0]
    return _validate(values, "query")


_read_usual = lru_cache(maxsize=256)(_read_query_string)


async def merge_aside(query: Parameters, fields: dict[str, Any], most_candidates: int) -> Question:
    """Returns what `merge_parameters` does, and has a thread do what takes longer.

    Args:
        query: the parameters of the query string.
        fields: the fields of the body, except its images, not yet checked.
        most_candidates: candidate labels that a body may have.

    Raises:
        InvalidLabelSet: it has more, and nobody has looked at them.
        InvalidParameters: as `merge_parameters` does.
        RepeatedField: as `merge_parameters` does.
    """
    candidates = fields.get("candidate_labels")
    if isinstance(candidates, list):
        check_candidates(candidates, most_candidates)
        characters = sum(len(name) for name in candidates if isinstance(name, str))
        if characters > _QUICK_CHARACTERS:
            return await asyncio.to_thread(merge_parameters, query, fields)
    return merge_parameters(query, fields)


def merge_parameters(query: Parameters, fields: dict[str, Any]) -> Question:
    """Puts the parameters of the query string and those of the body together.

    Args:
        query: the parameters of the query string.
        fields: the fields of the body, except its images, not yet checked.

    Raises:
        InvalidParameters: a field is of the wrong type or out of range.
        RepeatedField: a parameter has one value in the query string and another in the
            body.
    """
    if not fields:
        return _make_question(query)
    merged = _validate(fields, "body").model_dump(exclude_none=True)
    for name, value in query.model_dump(exclude_none=True).items():
        if merged.setdefault(name, value) != value:
            raise RepeatedField(name)
    return _make_question(Parameters.model_construct(**merged))


def _make_question(given: Parameters) -> Question:
    return Question(
        top_k=given.top_k,
        threshold=given.threshold,
        include=tuple(given.include or ()),
        exclude=tuple(given.exclude or ()),
        label_set=tuple(given.label_set or ()),
        candidate_labels=tuple(given.candidate_labels or ()),
        min_version=given.min_version,
        explain=_EXPLAIN[given.explain or False],
    )


def _validate(values: dict[str, Any], where: str) -> Parameters:
    try:
        return Parameters.model_validate(values)
    except ValidationError as error:
        raise InvalidParameters(list_values(error.errors(), where=where)) from error
