"""`/predict` and `/predict/batch`: the labels of one photo, or of several."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import to_json

from service import errors
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.parameters import add_fields, read_parameters
from service.http.requests.uploads import Upload, UploadShape, decode_base64, read_upload
from service.http.responses.openapi import document_predict, document_problems
from service.http.responses.problems import describe_problem
from service.http.responses.schemas import MAX_HIDDEN, BatchAnswer, ImageFailure, PredictAnswer
from service.http.security.keys import PREDICT, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.pipeline.served import ServedPipeline
from service.question import MAX_EXPLAINED, Question
from service.scheduling.tasks import run_together
from service.settings import Settings

if TYPE_CHECKING:
    from service.http.requests.urls import Fetcher

MAX_BATCH_IMAGES = 16

# In an answer: describing and writing so many takes 3 ms.
_MAX_INLINE_LABELS = 2000

_ONE_IMAGE = UploadShape()
PHOTO_PROBLEMS = (
    *ROUTE_PROBLEMS,
    *(errors.CrossSite, errors.TooManyImages, errors.QueueFull),
    *(errors.InferenceFailed, errors.OutOfMemory, errors.DeadlineExceeded),
)
"""Errors of all routes that take photos, without those of bodies and images."""
REQUEST_PROBLEMS = (
    *(*PHOTO_PROBLEMS, errors.FieldError, errors.QuestionError, errors.InvalidLabelSet),
    *(errors.TextNotEncodable, errors.NoOpenHead),
    *(errors.VersionNotReached, errors.StoreUnavailable),
)
"""Errors of every prediction, without those of its body and its images."""

router = APIRouter(tags=["predict"], dependencies=[*PREDICT, LIMITED])


@router.post(
    "/predict",
    response_model=PredictAnswer,
    responses=document_problems(
        errors.BodyError, *REQUEST_PROBLEMS, errors.UrlError, errors.ImageError
    ),
    openapi_extra=document_predict(_ONE_IMAGE),
)
async def predict(request: Request) -> Response:
    """Labels one image: a form field, the bare body, or base64 in JSON."""
    pipeline, upload, question = await _read(request, _ONE_IMAGE)
    work = _label_one(request, pipeline, upload, question)
    selection, prediction = await cancel_on_disconnect(request, work)
    is_long = len(prediction.labels) > _MAX_INLINE_LABELS
    # Without pydantic models, which would take as long as the rest of an answer.
    answer = {
        **_describe_model(pipeline, selection),
        **_describe_image(prediction),
        "request_id": request.state.request_id,
    }
    return await write_answer(request.app.state.served, answer, is_long=is_long)


@router.post(
    "/predict/batch",
    response_model=BatchAnswer,
    responses=document_problems(errors.BodyError, *REQUEST_PROBLEMS),
    openapi_extra=document_predict(UploadShape(MAX_BATCH_IMAGES, batch=True)),
)
async def predict_batch(request: Request) -> Response:
    """Labels up to 16 images with the same parameters: form fields, or base64 in JSON.

    If an image cannot be used, its entry has the problem, and the others are labelled.
    """
    shape = UploadShape(limit_images(request.app.state.served.settings), batch=True)
    pipeline, upload, question = await _read(request, shape)
    _check_overlays(question, len(upload.images))
    work = _label_all(pipeline, upload, question)
    selection, results = await cancel_on_disconnect(request, work)
    num_labels = sum(len(r.labels) for r in results if isinstance(r, Prediction))
    is_long = num_labels > _MAX_INLINE_LABELS or bool(question.explain or question.embedding)
    answer = {
        **_describe_model(pipeline, selection),
        "results": (
            _describe_image(result) if isinstance(result, Prediction) else result
            for result in results
        ),
        "request_id": request.state.request_id,
    }
    return await write_answer(request.app.state.served, answer, is_long=is_long)


async def write_answer(
    served: ServedPipeline, answer: Mapping[str, Any], *, is_long: bool = True
) -> Response:
    """Writes JSON, if long in a side thread; others run between the items of its generators."""
    write = partial(to_json, answer, exclude_none=True)
    content = await served.run_in_side_thread(write) if is_long else write()
    return Response(content, media_type=JSON)


def limit_images(settings: Settings) -> int:
    """Returns the most images of a request: never more than the queue has places."""
    return min(MAX_BATCH_IMAGES, settings.queue_size)


async def _read(request: Request, shape: UploadShape) -> tuple[Pipeline, Upload, Question]:
    served: ServedPipeline = request.app.state.served
    pipeline, parameters = served.pipeline, read_parameters(request)
    upload = await read_upload(request, shape, served)
    question = await add_fields(parameters, upload.fields, served)
    return pipeline, upload, question


def _check_overlays(question: Question, images: int) -> None:
    """Raises InvalidParameters for more overlays than one image may have: each has 20 kB."""
    labels = min(question.top_k or MAX_EXPLAINED, MAX_EXPLAINED)
    if question.explain == "overlay" and images * labels > MAX_EXPLAINED:
        reason = (
            f"A request may have {MAX_EXPLAINED} overlays: for {images} images send a top_k of at "
            f"most {MAX_EXPLAINED // images}, or fewer images"
        )
        raise errors.InvalidParameters([errors.ProblemValue("body", "explain", reason)])


async def _label_one(
    request: Request, pipeline: Pipeline, upload: Upload, question: Question
) -> tuple[Selection, Prediction]:
    if upload.url is None:
        data = decode_base64(upload.images[0])
    else:
        fetcher: Fetcher | None = request.app.state.fetcher
        if fetcher is None:
            raise errors.UrlInputOff
        data = await fetcher.fetch(upload.url, request.state.reservation)
    deadline = pipeline.make_deadline()
    selection = await pipeline.select(question, deadline)
    return selection, await pipeline.predict(data, selection, deadline)


async def _label_all(
    pipeline: Pipeline, upload: Upload, question: Question
) -> tuple[Selection, list[Prediction | ImageFailure]]:
    deadline = pipeline.make_deadline()
    selection = await pipeline.select(question, deadline)
    works = (label_or_fail(pipeline, image, selection, deadline) for image in upload.images)
    return selection, await run_together(works)


async def label_or_fail(
    pipeline: Pipeline, image: bytes | str, selection: Selection, deadline: float
) -> Prediction | ImageFailure:
    """Returns the labels of one image of several, or why it cannot be used."""
    try:
        return await pipeline.predict(decode_base64(image), selection, deadline)
    except (errors.ImageError, errors.MalformedBody) as error:
        return ImageFailure(error=describe_problem(error))


def _describe_model(pipeline: Pipeline, selection: Selection) -> dict[str, Any]:
    card = pipeline.bundle.card
    sets = []
    for labels in selection.sets:
        described: dict[str, Any] = {"name": labels.name, "version": labels.version}
        if labels.ranked:
            described["ranked"] = True
        if lost := selection.hidden.get(labels.name):
            described |= {"num_hidden": len(lost), "hidden": lost[:MAX_HIDDEN]}
        sets.append(described)
    answer = {
        "model": {"name": card.name, "version": card.version},
        "label_set": {"name": selection.name, "version": selection.version},
        "label_sets": sets,
    }
    return {**answer, "resolved": selection.resolved} if selection.resolved else answer


def _describe_image(prediction: Prediction) -> dict[str, Any]:
    return prediction.describe(
        f"data:image/png;base64,{base64.b64encode(explanation.overlay).decode()}"
        for explanation in prediction.explanations
        if explanation.overlay is not None
    )


ROUTES = tuple(route for route in router.routes if isinstance(route, APIRoute))
