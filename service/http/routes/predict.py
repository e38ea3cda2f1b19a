"""Predict: photos in, labels out.

In: one photo (`/predict`) or several (`/predict/batch`) and what is asked of them. Out:
their labels. A client that leaves takes its work with it. Next: `pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from service import errors
from service.errors import ImageError, MalformedBody, UrlInputOff
from service.http.host import PipelineHost
from service.http.requests.disconnects import finish_or_leave
from service.http.requests.multipart import FormShape
from service.http.requests.parameters import (
    LIST_PARAMETERS,
    SINGLE_PARAMETERS,
    add_fields,
    read_parameters,
)
from service.http.requests.uploads import JSON, Upload, UploadedImage, UploadShape, read_upload
from service.http.responses.openapi import document_predict, document_problems
from service.http.responses.prediction_json import write_batch, write_prediction
from service.http.responses.problems import describe_problem
from service.http.responses.schemas import BatchAnswer, ImageFailure, PredictAnswer
from service.http.routes.direct import DirectRoute
from service.http.security.keys import PREDICT
from service.http.security.rates import LIMITED
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.scheduling.tasks import run_together
from service.settings import Settings

if TYPE_CHECKING:
    from service.http.requests.urls import Fetcher

MAX_BATCH_IMAGES = 16

_ONE_IMAGE = UploadShape(
    FormShape("image", 1, SINGLE_PARAMETERS, LIST_PARAMETERS), takes_raw_image=True, takes_url=True
)
_MANY_IMAGES = UploadShape(
    FormShape("images", MAX_BATCH_IMAGES, SINGLE_PARAMETERS, LIST_PARAMETERS, takes_list=True),
    takes_raw_image=False,
)
REQUEST_PROBLEMS = (
    errors.Unauthorized,
    errors.RateLimited,
    errors.MalformedBody,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.UnsupportedMediaType,
    errors.UnsupportedContentEncoding,
    errors.MissingField,
    errors.UnknownField,
    errors.RepeatedField,
    errors.TooManyImages,
    errors.InvalidParameters,
    errors.UnknownLabel,
    errors.ConflictingLabels,
    errors.UnknownLabelSet,
    errors.NoMaps,
    errors.InvalidLabelSet,
    errors.TextNotEncodable,
    errors.NoOpenHead,
    errors.VersionNotReached,
    errors.StoreUnavailable,
    errors.QueueFull,
    errors.InferenceFailed,
    errors.OutOfMemory,
    errors.NotReady,
    errors.Draining,
    errors.DeadlineExceeded,
)
_URL_PROBLEMS = (
    errors.UrlInputOff,
    errors.UrlNotUsable,
    errors.OriginTimeout,
)
IMAGE_PROBLEMS = (errors.InvalidImage, errors.UnsupportedImage, errors.TooManyPixels)

router = APIRouter(route_class=DirectRoute, tags=["predict"], dependencies=[*PREDICT, LIMITED])


@router.post(
    "/predict",
    response_model=PredictAnswer,
    responses=document_problems(*REQUEST_PROBLEMS, *_URL_PROBLEMS, *IMAGE_PROBLEMS),
    openapi_extra=document_predict(_ONE_IMAGE),
)
async def predict(request: Request) -> Response:
    """Labels one image: a form field, the bare body, or base64 in JSON.

    Where the service is set to fetch images, `url` may take the place of `image` in JSON.
    """
    host: PipelineHost = request.app.state.host
    pipeline, parameters = host.pipeline, read_parameters(request)
    upload = await read_upload(request, _ONE_IMAGE, host.settings)
    most = host.settings.max_candidate_labels
    question = await add_fields(parameters, upload.fields, most)
    work = _label_one(request, pipeline, upload, question)
    selection, prediction = await finish_or_leave(request, work)
    answer = write_prediction(pipeline, selection, prediction, request.state.request_id)
    return Response(answer, media_type=JSON)


@router.post(
    "/predict/batch",
    response_model=BatchAnswer,
    responses=document_problems(*REQUEST_PROBLEMS),
    openapi_extra=document_predict(_MANY_IMAGES),
)
async def predict_batch(request: Request) -> Response:
    """Labels up to 16 images with the same parameters: form fields, or base64 in JSON.

    An image that cannot be used costs only itself: its entry holds the problem. Whatever
    concerns the whole request, a full queue for example, fails the whole request.
    """
    host: PipelineHost = request.app.state.host
    pipeline, parameters = host.pipeline, read_parameters(request)
    form = replace(_MANY_IMAGES.form, max_images=limit_images(host.settings))
    upload = await read_upload(request, replace(_MANY_IMAGES, form=form), host.settings)
    most = host.settings.max_candidate_labels
    question = await add_fields(parameters, upload.fields, most)
    work = _label_all(pipeline, upload.images, question)
    selection, results = await finish_or_leave(request, work)
    answer = await write_batch(pipeline, selection, results, request.state.request_id)
    return Response(answer, media_type=JSON)


def limit_images(settings: Settings) -> int:
    """Returns the most images of a request: what the queue never has places for is not busy."""
    return min(MAX_BATCH_IMAGES, settings.queue_size)


async def _label_one(
    request: Request, pipeline: Pipeline, upload: Upload, question: Question
) -> tuple[Selection, Prediction]:
    if upload.url is None:
        data = upload.images[0].decode()
    else:
        fetcher: Fetcher | None = request.app.state.fetcher
        if fetcher is None:
            raise UrlInputOff
        data = await fetcher.fetch(upload.url, request.state.held_body)
    deadline = pipeline.make_deadline()
    selection = await pipeline.select(question, deadline)
    return selection, await pipeline.predict(data, selection, deadline)


async def _label_all(
    pipeline: Pipeline, images: Sequence[UploadedImage], question: Question
) -> tuple[Selection, list[Prediction | ImageFailure]]:
    deadline = pipeline.make_deadline()
    selection = await pipeline.select(question, deadline)
    trying = (_try_one(pipeline, image, selection, deadline) for image in images)
    return selection, await run_together(trying)


async def _try_one(
    pipeline: Pipeline, image: UploadedImage, selection: Selection, deadline: float
) -> Prediction | ImageFailure:
    try:
        return await pipeline.predict(image.decode(), selection, deadline)
    except (ImageError, MalformedBody) as error:
        return ImageFailure(error=describe_problem(error))


ROUTES = tuple(route for route in router.routes if isinstance(route, DirectRoute))
