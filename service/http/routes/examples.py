"""`/labels/{name}/examples`: what a label learns from photos, which are not stored."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service import errors
from service.fields import LabelText
from service.http.requests.body import cancel_on_disconnect
from service.http.requests.parameters import Host
from service.http.requests.uploads import read_examples
from service.http.responses.examples import LessonAnswer, answer_lesson
from service.http.responses.openapi import (
    TAG,
    TAG_AND_PLACE,
    document_examples,
    document_problems,
)
from service.http.responses.schemas import LabelSetAnswer
from service.http.routes.calibrate import PHOTO_PROBLEMS
from service.http.routes.labels import (
    ON_CHANGING,
    WRITE_PROBLEMS,
    WRITING,
    Name,
    answer_set,
    demand_version,
)
from service.pipeline.teaching import teach_label

_LESSON_PROBLEMS = (
    errors.InvalidParameters,
    errors.NoBackground,
    errors.ScoresCompete,
    errors.LabelSetChanged,
)

Label = Annotated[LabelText, Query(description="Name of the label.")]

router = APIRouter(prefix="/labels/{name}/examples", tags=["labels"], dependencies=WRITING)


@router.post(
    "",
    summary="Teach a label with photos",
    response_model=LessonAnswer,
    responses={
        HTTPStatus.OK.value: TAG,
        HTTPStatus.CREATED.value: {
            "model": LessonAnswer,
            "description": "There was no such set.",
            **TAG_AND_PLACE,
        },
        **document_problems(
            *WRITE_PROBLEMS,
            *_LESSON_PROBLEMS,
            *(error for error in PHOTO_PROBLEMS if error is not errors.CrossSite),
            errors.ImageError,
            errors.InvalidLabelSet,
            errors.TextNotEncodable,
            errors.TooManyLabelSets,
        ),
    },
    openapi_extra={**document_examples(), **ON_CHANGING},
)
async def teach(
    request: Request,
    host: Host,
    name: Name,
    label: Label,
    replace: Annotated[
        bool, Query(description="Forget the label's earlier examples first.")
    ] = False,
) -> Response:
    """Teaches a label with 1 to 200 photos that show it, or do not; returns how they score now.

    A label or set that is missing is added. Photos add up over requests; the same photo, or nearly
    the same, counts once. Photos are not stored, only sums of their embeddings. If a photo cannot
    be used, nothing is learnt. With `If-Match`, only the version named there is changed.
    """
    pipeline = host.pipeline
    pipeline.catalogue.teachable(name)  # before the photos are read
    photos = await read_examples(request, host.settings)
    with pipeline.admit():
        version = await demand_version(request, pipeline.catalogue, name)
        work = teach_label(pipeline, name, label, *photos, replace=replace, if_version=version)
        taught = await cancel_on_disconnect(request, work)
        return await answer_set(
            request,
            taught.labels,
            created=taught.created,
            describe=lambda _: answer_lesson(taught, label),
        )


@router.delete(
    "",
    summary="Forget the examples of a label",
    response_model=LabelSetAnswer,
    responses={
        HTTPStatus.OK.value: TAG,
        **document_problems(
            *WRITE_PROBLEMS, *_LESSON_PROBLEMS, errors.LabelSetNotFound, errors.NoExamples
        ),
    },
    openapi_extra=ON_CHANGING,
)
async def forget(request: Request, host: Host, name: Name, label: Label) -> Response:
    """Removes a label's examples; the label and its text stay. Returns the label set.

    With `If-Match`, only the version named there is changed.
    """
    pipeline = host.pipeline
    with pipeline.admit():
        version = await demand_version(request, pipeline.catalogue, name)
        work = pipeline.catalogue.teachable(name).forget(name, label, version)
        return await answer_set(request, await cancel_on_disconnect(request, work))
