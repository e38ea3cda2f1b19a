"""`/labels`: registers label sets, which `/predict` uses by name. 201 and 200 mean durable."""

import re
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from service import errors
from service.caller import CALLER
from service.errors import InvalidParameters, LabelSetChanged, ProblemValue, quote
from service.fields import LabelSetName, validate
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.json import read_json_object
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.responses.openapi import (
    TAG,
    document_conditions,
    document_json,
    document_problems,
    document_write,
)
from service.http.responses.schemas import LabelSetAnswer, LabelSetsAnswer
from service.http.security.keys import ADMINISTRATE, PREDICT, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.labels.catalogue import Catalogue
from service.labels.definition import (
    MAX_EMBEDDING_VALUES,
    Definition,
    LabelSetRecord,
    ThresholdsRecord,
    check_count,
    refuse_duplicates,
)
from service.labels.label_set import LabelSet
from service.labels.store.store import ABSENT, PRESENT
from service.pipeline.served import ServedPipeline

_ANSWER_PROBLEMS = (*ROUTE_PROBLEMS, errors.DeadlineExceeded, errors.OutOfMemory)
NAME_PROBLEMS = (*_ANSWER_PROBLEMS, errors.LabelSetNotFound, errors.StoreUnavailable)
WRITE_PROBLEMS = (
    *(*_ANSWER_PROBLEMS, errors.CrossSite, errors.Forbidden),
    *(errors.NoOpenHead, errors.LabelSetReadOnly, errors.StoreError),
)
_SET_PROBLEMS = (
    *(errors.BodyError, errors.InvalidLabelSet, errors.TextNotEncodable, errors.OtherEmbeddings),
    *(errors.TooManyLabelSets, errors.QueueFull, errors.InferenceFailed),
)

_IF_MATCH = "The `ETag` of the version to replace, or `*` for any; else the answer is 412."
_IF_NONE_MATCH = "`*`: write only if there is no set of this name, else 412."
_ON_READING = document_conditions(if_none_match="The client's `ETag`: 304 if it is still valid.")
ON_CHANGING = document_conditions(if_match=_IF_MATCH)

_KEEPER = {"name": "keeper", "prompt": "a photo of a zoo keeper", "threshold": 0.4}
_EXAMPLE = {"labels": ["red panda", _KEEPER]}

_TAG = re.compile(r'(W/)?"([^"]*)"', re.IGNORECASE)

Name = Annotated[LabelSetName, Path(description="Name of the label set.")]

router = APIRouter(prefix="/labels", tags=["labels"])

_READING = [*PREDICT, LIMITED, KNOWN_NAMES]
WRITING = [*ADMINISTRATE, LIMITED, KNOWN_NAMES]


@router.get("", dependencies=_READING, responses=document_problems(*ROUTE_PROBLEMS))
async def list_label_sets(served: Served) -> LabelSetsAnswer:
    """Lists every label set, the trained labels included."""
    return LabelSetsAnswer.model_validate({"label_sets": served.pipeline.catalogue.list_sets()})


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    dependencies=WRITING,
    response_model=LabelSetAnswer,
    responses={
        **document_write(LabelSetAnswer, "It was registered before."),
        **document_problems(*WRITE_PROBLEMS, *_SET_PROBLEMS, errors.LabelSetExists),
    },
    openapi_extra=document_json(LabelSetRecord, example={"name": "zoo", **_EXAMPLE}),
)
async def register_label_set(request: Request, served: Served) -> Response:
    """Registers a label set; the same set again is 200, another set with its name 409."""
    return await _register(request, served)


@router.get(
    "/{name}",
    response_model=LabelSetAnswer,
    dependencies=_READING,
    responses={
        HTTPStatus.OK.value: TAG,
        HTTPStatus.NOT_MODIFIED.value: {"description": "The client has this version.", **TAG},
        **document_problems(*NAME_PROBLEMS),
    },
    openapi_extra=_ON_READING,
)
async def read_label_set(request: Request, served: Served, name: Name) -> Response:
    """Returns a label set with its labels; the `ETag` is its version."""
    labels = served.pipeline.catalogue.find(name)
    if _has_version(request, labels):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_make_tag(labels))
    return await answer_set(request, labels)


@router.put(
    "/{name}",
    response_model=LabelSetAnswer,
    dependencies=WRITING,
    responses={
        **document_write(LabelSetAnswer),
        **document_problems(*WRITE_PROBLEMS, *_SET_PROBLEMS, errors.LabelSetChanged),
    },
    openapi_extra={
        **document_json(LabelSetRecord, optional="name", example=_EXAMPLE),
        **document_conditions(if_match=_IF_MATCH, if_none_match=_IF_NONE_MATCH),
    },
)
async def replace_label_set(request: Request, served: Served, name: Name) -> Response:
    """Registers a label set or replaces it; with `If-Match`, only the version named there.

    You can change the answer of `GET` and send it back; a label with `own_embedding: true` needs
    its `embedding` again.
    """
    return await _register(request, served, name)


@router.patch(
    "/{name}",
    response_model=LabelSetAnswer,
    dependencies=WRITING,
    responses={
        HTTPStatus.OK.value: TAG,
        **document_problems(
            *(*NAME_PROBLEMS, *WRITE_PROBLEMS, errors.BodyError),
            *(errors.InvalidLabelSet, errors.UnknownLabel, errors.LabelSetChanged),
        ),
    },
    openapi_extra={
        **document_json(
            ThresholdsRecord, example={"labels": [{"name": "keeper", "threshold": 0.4}]}
        ),
        **ON_CHANGING,
    },
)
async def change_thresholds(request: Request, served: Served, name: Name) -> Response:
    """Changes the thresholds of the listed labels, and nothing else of the set.

    A `threshold` of null is the open head's. A write at the same time can cause 412.
    """
    pipeline = served.pipeline
    body = await read_json_object(request, served, served.settings.max_labels_per_set)
    check_count(body, served.settings.max_labels_per_set)
    given = (await served.run_in_side_thread(validate, ThresholdsRecord, body, "body")).labels
    refuse_duplicates(tuple(label.name for label in given))
    thresholds = {label.name: label.threshold for label in given}
    with pipeline.admit():
        version = await demand_version(request, pipeline.catalogue, name)
        work = pipeline.catalogue.writable(name).calibrate(name, thresholds, if_version=version)
        return await answer_set(request, await cancel_on_disconnect(request, work))


@router.delete(
    "/{name}",
    status_code=HTTPStatus.NO_CONTENT,
    dependencies=WRITING,
    responses=document_problems(*NAME_PROBLEMS, *WRITE_PROBLEMS, errors.LabelSetChanged),
    openapi_extra=ON_CHANGING,
)
async def delete_label_set(request: Request, served: Served, name: Name) -> None:
    """Deletes a label set; with `If-Match`, only the version named there."""
    pipeline = served.pipeline
    with pipeline.admit():
        version = await demand_version(request, pipeline.catalogue, name)
        await pipeline.catalogue.writable(name).delete(name, if_version=version)


async def _register(request: Request, served: ServedPipeline, name: str | None = None) -> Response:
    pipeline, version = served.pipeline, None
    limit = served.settings.max_labels_per_set
    body = await read_json_object(request, served, limit, MAX_EMBEDDING_VALUES)
    check_count(body, limit)
    definition = await served.run_in_side_thread(_define, body, name)
    with pipeline.admit():
        if name is not None:
            version = await demand_version(request, pipeline.catalogue, name)
        sets = pipeline.catalogue.writable(definition.name)
        work = sets.register(definition, replace=name is not None, if_version=version)
        labels, created = await cancel_on_disconnect(request, work)
        return await answer_set(request, labels, created=created)


async def demand_version(request: Request, catalogue: Catalogue, name: str) -> int | None:
    """Returns the version that a write must replace: `ABSENT`, `PRESENT`, or None for no condition.

    Raises `LabelSetChanged` if a condition (RFC 9110, section 13) fails; a tag quotes the version.
    """
    if "if-match" in request.headers or "if-none-match" in request.headers:
        await catalogue.refresh()  # the client may have seen another process's version
    current = catalogue.get(name)
    if current is not None and _has_version(request, current):
        raise LabelSetChanged(name, current.version)
    condition = _read_condition(request, "if-match")
    if condition is None:
        return ABSENT if _read_condition(request, "if-none-match") == "*" else None
    if current is None:
        raise LabelSetChanged(name, None)
    if condition == "*":
        return PRESENT
    if current.version not in [tag for weak, tag in _TAG.findall(condition) if not weak]:
        raise LabelSetChanged(name, current.version)
    return None if current.read_only else int(current.version)


def _has_version(request: Request, labels: LabelSet) -> bool:
    """Returns whether `If-None-Match` lists this version, which the client then has."""
    condition = _read_condition(request, "if-none-match") or ""
    return condition == "*" or any(labels.version == tag for _, tag in _TAG.findall(condition))


def _read_condition(request: Request, name: str) -> str | None:
    """Returns all lines of a header as one list; None without the header."""
    lines = [line.strip() for line in request.headers.getlist(name)]
    if "*" in lines:
        return "*"
    return ", ".join(lines) if lines else None


def _make_tag(labels: LabelSet) -> dict[str, str]:
    return {"ETag": f'"{labels.version}"'}


def _define(body: dict[str, Any], name: str | None = None) -> Definition:
    if name is not None and body.setdefault("name", name) != name:
        reason = f"Should be the name in the path, {quote(name)}"
        raise InvalidParameters([ProblemValue("body", "name", reason)])
    return validate(LabelSetRecord, body, "body").define()


async def answer_set(
    request: Request, labels: LabelSet, answer: BaseModel | None = None, *, created: bool = False
) -> Response:
    """Answers a request for a set, or a change of it, by default with the whole set."""
    if answer is not None:
        content = answer.model_dump_json().encode()
    else:
        if not request.scope.get("is_head"):
            CALLER.get().charge_labels(labels.num_labels)
        served: ServedPipeline = request.app.state.served
        content = await served.run_in_side_thread(lambda: labels.content)
    headers, status = _make_tag(labels), HTTPStatus.OK
    if created:
        headers["Location"] = f"{request.scope['root_path']}/labels/{labels.name}"
        status = HTTPStatus.CREATED
    return Response(content, status, headers, JSON)
