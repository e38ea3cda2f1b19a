"""`/tagger/v1`: the API of stable-diffusion-webui-wd14-tagger, which many scripts call."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.errors import ServiceError
from service.http.dialects import labelling
from service.http.requests.parameters import Served
from service.http.responses.openapi import document_problems
from service.http.responses.problems import list_headers
from service.http.routes.predict import write_answer
from service.http.security.keys import PREDICT_BY_BASIC, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.labels.label_set import RATING
from service.question import Question


class InterrogateRequest(BaseModel):
    """The body; other fields are ignored, `model` too: scripts name one that they know."""

    image: str = Field(description="Base64, or a data URL.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Lowest score of a tag. Default: the tag's own threshold."
    )


def render_error(error: ServiceError, _request_id: str | None) -> JSONResponse:
    """Returns the answer to an error."""
    content = {"error": error.code, "detail": error.describe(), "body": "", "errors": ""}
    headers = list_headers(error)
    if "WWW-Authenticate" in headers:
        headers["WWW-Authenticate"] = 'Basic realm="the password is a key"'
    return JSONResponse(content, error.status, headers)


_GUARDS = (*PREDICT_BY_BASIC, LIMITED)
_MEMBERS = ("error", "detail", "body", "errors")
_ERRORS = document_problems(*ROUTE_PROBLEMS, members=_MEMBERS)
router = APIRouter(prefix="/tagger/v1", tags=["dialects"])


@router.get("/interrogators", responses=_ERRORS, dependencies=_GUARDS)
async def list_interrogators(served: Served) -> dict[str, list[str]]:
    """Lists the served model."""
    return {"models": [served.pipeline.bundle.card.name]}


@router.post("/unload-interrogators", responses=_ERRORS, dependencies=_GUARDS)
async def unload_interrogators() -> str:
    """Unloads nothing."""
    return "Successfully unload 0 model(s)"


@router.post(
    "/interrogate",
    **labelling.document_labels(InterrogateRequest, _MEMBERS),
    dependencies=[labelling.ROOM, *_GUARDS],
)
async def interrogate(request: Request, served: Served) -> Response:
    """Returns `caption`: the scores of tags, and those of all ratings if the model has some."""
    asked = await labelling.read_fields(request, served, InterrogateRequest)
    pipeline = served.pipeline
    has_ratings = any(label.category == RATING for label in pipeline.bundle.labels)
    least = labelling.ALL_LABELS if has_ratings else None  # those below the threshold answer too
    question = Question(threshold=asked.threshold, min_labels=least)
    _, (prediction,) = await labelling.label_photos(request, pipeline, question, [asked.image])
    caption: dict[str, dict[str, float]] = {"tag": {}, "rating": {}}
    for label in prediction.labels:
        is_rating = label.category == RATING
        if is_rating or label.found:
            caption["rating" if is_rating else "tag"][label.label] = round(label.score, 6)
    return await write_answer(served, {"caption": caption})
