"""Routes and errors of `/v2`, for the bundle's model and version; `model_alias` is another name."""

import math
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse

from service import errors
from service.http.dialects.labelling import ROOM, label_photos
from service.http.dialects.open_inference import answer
from service.http.dialects.open_inference.request import (
    HEADER_LENGTH,
    InferBody,
    parse_infer_request,
)
from service.http.requests.body import BYTES, JSON, Body
from service.http.requests.parameters import Served
from service.http.responses.openapi import document_answer, document_problems, document_tensors
from service.http.responses.problems import list_headers
from service.http.routes.predict import REQUEST_PROBLEMS, limit_images
from service.http.security.keys import PREDICT, PUBLIC, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline

PREFIX = "/v2"
# The protocol has 400 for everything that is invalid in a request.
_BAD_REQUESTS = frozenset({409, 415, 422})

_ANSWERS = document_answer(
    "The outputs; the bytes of binary ones follow the JSON.",
    *(JSON, BYTES),
    headers={HEADER_LENGTH: {"description": "Bytes of JSON.", "schema": {"type": "integer"}}},
)


def _find_status(status: int) -> int:
    return HTTPStatus.BAD_REQUEST.value if status in _BAD_REQUESTS else status


def render_error(error: errors.ServiceError, _request_id: str | None) -> JSONResponse:
    """Returns the answer to an error."""
    content = {"error": error.describe()}
    return JSONResponse(content, _find_status(error.status), list_headers(error))


_document = partial(document_problems, members=["error"], find_status=_find_status)
_MODEL_ERRORS = _document(*ROUTE_PROBLEMS, errors.UnknownModel)
_INFER_ERRORS = _document(
    *(errors.InvalidTensors, errors.UnknownModel, errors.MalformedBody, errors.BodyTimeout),
    # Not UnsupportedMediaType: Triton's clients send no Content-Type.
    *(errors.BodyTooLarge, errors.UnsupportedContentEncoding, *REQUEST_PROBLEMS, errors.ImageError),
)

ModelName = Annotated[str, Path(max_length=200)]


async def find_model(served: Served, name: ModelName) -> Pipeline:
    """Returns the pipeline. Raises `UnknownModel` if the path names another model."""
    pipeline = served.pipeline
    known = [pipeline.bundle.card.name, *filter(None, [served.settings.model_alias])]
    if name not in known:
        raise errors.UnknownModel("Model", name, " or ".join(known))
    return pipeline


Model = Annotated[Pipeline, Depends(find_model)]


async def check_version(pipeline: Model, version: ModelName) -> None:
    """Raises `UnknownModel` if the path has another version."""
    known = pipeline.bundle.card.version
    if version != known:
        raise errors.UnknownModel("Version", version, known)


async def model(pipeline: Model, name: ModelName) -> dict[str, Any]:
    """Describes the model's inputs, files or upright RGB of the model's size, and outputs."""
    return answer.describe_model(pipeline.bundle.card, name)


async def model_ready(served: Served, name: ModelName) -> dict[str, Any]:
    """Returns 200 if the model answers predictions now."""
    served.check_ready()
    return {"name": name, "ready": True}


async def infer(request: Request, served: Served, pipeline: Model, name: ModelName) -> Response:
    """Scores photos or pixels, JSON or binary tensors.

    Without `label_set` and the setting `default_label_set`, the trained labels answer, or those of
    the first set. A photo that cannot be used fails the whole request; the error names it.
    """
    body = await Body(request, served.settings).read()
    card, catalogue = pipeline.bundle.card, pipeline.catalogue
    contract, limit = card.input, limit_images(served.settings)
    # One set, as in the Triton repository: all labels of all sets would be a wide answer.
    rest = request.headers.get(HEADER_LENGTH), contract, limit, catalogue.default_columns
    read = await served.run_in_side_thread(parse_infer_request, body, *rest)
    asked, question, photos = read
    timeout = asked.parameters.timeout
    seconds = timeout / 1e6 if timeout else math.inf
    selection, predictions = await label_photos(request, pipeline, question, photos, seconds)
    # Thousands of labels would block the event loop.
    return await served.run_in_side_thread(
        answer.write_infer_answer, asked, name, card.version, selection, predictions
    )


router = APIRouter(tags=["dialects"])


@router.get(PREFIX, dependencies=[PUBLIC])
async def server(request: Request) -> dict[str, Any]:
    """Describes the server."""
    extensions = ["binary_tensor_data", "classification"]
    version = request.app.version
    return {"name": "ml-decoder-serve", "version": version, "extensions": extensions}


@router.get(f"{PREFIX}/health/live")
async def live() -> dict[str, bool]:
    """Returns 200 while the process answers, ready or not."""
    return {"live": True}


@router.get(f"{PREFIX}/health/ready", responses=_document(errors.UnavailableError))
async def ready(served: Served) -> dict[str, bool]:
    """Returns 200 if predictions are answered now."""
    served.check_ready()
    return {"ready": True}


def _make_model_router(prefix: str, *checks: Callable[..., Any]) -> APIRouter:
    # Logs and metrics show this path: a prefix given to `include_router` would be missing.
    # After the key: clients without one do not learn names.
    depends = [Depends(check) for check in (find_model, *checks)]
    of_model = APIRouter(prefix=f"{PREFIX}{prefix}")
    of_model.get("", responses=_MODEL_ERRORS, dependencies=[*PREDICT, LIMITED, *depends])(model)
    of_model.get("/ready", responses=_MODEL_ERRORS, dependencies=[*PREDICT, *depends])(model_ready)
    of_model.post(
        "/infer",
        response_class=Response,
        responses={**_ANSWERS, **_INFER_ERRORS},
        openapi_extra=document_tensors(InferBody, HEADER_LENGTH),
        dependencies=[ROOM, *PREDICT, LIMITED, *depends],
    )(infer)
    return of_model


router.include_router(_make_model_router("/models/{name}"))
router.include_router(_make_model_router("/models/{name}/versions/{version}", check_version))
