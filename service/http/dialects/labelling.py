"""What the requests of dialects have in common: guards, reading, labelling all photos."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, Field

from service import errors
from service.fields import ModelT, validate
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.json import read_json_object
from service.http.requests.parameters import Served
from service.http.requests.uploads import count_images, decode_base64
from service.http.responses.openapi import document_answer, document_json, document_problems
from service.http.routes.predict import REQUEST_PROBLEMS, limit_images
from service.images.decode import DecodedImage
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction
from service.pipeline.selection import Selection
from service.pipeline.served import ServedPipeline
from service.question import Question
from service.scheduling.tasks import run_together

ALL_LABELS = 2**31 - 1  # as `top_k`: every label is scored
# With a limit, pydantic refuses lone surrogates, which no answer could encode.
RequestId = Annotated[str, Field(max_length=200)]
Photo = str | bytes | DecodedImage


async def check_room(served: Served) -> None:
    """Raises QueueFull before the body is read."""
    if served.ready:
        served.pipeline.queue.check_room()


ROOM = Depends(check_room)
"""A guard of routes that take photos, before the key as in `DirectRouter`."""


async def read_fields(request: Request, served: ServedPipeline, model: type[ModelT]) -> ModelT:
    """Reads a body of JSON; null is as if it were not sent. Raises as `read_json_object`."""
    body = await read_json_object(request, served)
    return validate(model, {k: v for k, v in body.items() if v is not None}, "body")


def document_labels(body: type[BaseModel], error_members: Sequence[str]) -> dict[str, Any]:
    """Returns FastAPI's arguments of a route that labels photos in the shape of a program."""
    problems = (errors.BodyError, *REQUEST_PROBLEMS, errors.ImageError)
    responses = document_answer("In the shape of the program.", JSON)
    responses |= document_problems(*problems, members=error_members)
    return {"responses": responses, "openapi_extra": document_json(body)}


async def label_photos(
    request: Request,
    pipeline: Pipeline,
    question: Question,
    photos: Sequence[Photo],
    timeout_seconds: float = math.inf,
) -> tuple[Selection, list[Prediction]]:
    """Labels files, their base64 or pixels; raises the error of one that cannot be used."""
    count_images(photos, limit_images(pipeline.settings))
    deadline = pipeline.make_deadline(timeout_seconds)
    selection = await cancel_on_disconnect(request, pipeline.select(question, deadline))

    async def label(number: int, photo: Photo) -> Prediction:
        try:
            data = photo if isinstance(photo, DecodedImage) else decode_base64(photo)
            return await pipeline.predict(data, selection, deadline)
        except (errors.ImageError, errors.MalformedBody) as error:
            if len(photos) > 1:
                place = f"Photo {number} of {len(photos)}."
                error.detail = " ".join(filter(None, (place, error.detail)))
            raise

    works = (label(number, photo) for number, photo in enumerate(photos, 1))
    return selection, await cancel_on_disconnect(request, run_together(works))
