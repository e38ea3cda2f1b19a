"""`/api/v1/vision/labels`: the labels of PhotoPrism, whose `vision.yml` names this service."""

from itertools import chain
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.errors import ServiceError
from service.http.dialects import labelling
from service.http.requests.parameters import Served
from service.http.responses.problems import list_headers
from service.http.routes.predict import MAX_BATCH_IMAGES, write_answer
from service.http.security.keys import PREDICT
from service.http.security.rates import LIMITED
from service.pipeline.scoring import ScoredLabel
from service.question import Question


class VisionRequest(BaseModel):
    """The body; other fields, such as `model`, are ignored."""

    id: labelling.RequestId = ""
    images: list[str] = Field(
        min_length=1,
        max_length=MAX_BATCH_IMAGES,
        fail_fast=True,
        description="Of one photo: data:image/jpeg;base64,...",
    )


def render_error(error: ServiceError, request_id: str | None) -> JSONResponse:
    """Returns the answer to an error."""
    content = {"id": request_id, "code": error.status, "error": error.describe()}
    return JSONResponse(content, error.status, list_headers(error))


_GUARDS = (labelling.ROOM, *PREDICT, LIMITED)
router = APIRouter(prefix="/api/v1/vision", tags=["dialects"], dependencies=_GUARDS)


@router.post("/labels", **labelling.document_labels(VisionRequest, ["id", "code", "error"]))
async def label_for_photoprism(request: Request, served: Served) -> Response:
    """Returns the labels found in a photo, of several pictures of it the best score.

    If one picture cannot be used, the request fails.
    """
    asked = await labelling.read_fields(request, served, VisionRequest)
    request.state.body_id = asked.id
    pipeline, question = served.pipeline, Question(parents=True)
    _, predictions = await labelling.label_photos(request, pipeline, question, asked.images)
    labels = chain.from_iterable(each.labels for each in predictions)
    best: dict[str, ScoredLabel] = {}  # by name: two labels may have one translation
    for label in sorted(labels, key=lambda label: -label.score):
        best.setdefault(label.translation or label.label, label)
    card = pipeline.bundle.card
    answer = {
        "id": asked.id,
        "code": 200,
        "model": {"type": "labels", "name": card.name, "version": card.version},
        # May be empty: PhotoPrism stores whatever is here, so that a guess would be a wrong label.
        "result": {"labels": [_describe(name, label) for name, label in best.items()]},
    }
    return await write_answer(served, answer)


def _describe(name: str, label: ScoredLabel) -> dict[str, Any]:
    score = round(label.score, 6)
    return {
        "name": name,
        "source": "image",
        "priority": 0,  # PhotoPrism makes one of the topicality
        "confidence": score,
        "topicality": score,
        "categories": label.parent_translations or label.parents or (),
        "nsfw": False,
        "nsfw_confidence": 0.0,
    }
