"""`/v1`: embeddings for clients of OpenAI's API."""

from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from service import errors
from service.errors import ServiceError
from service.fields import MAX_PROMPT_CHARACTERS, is_utf8
from service.http.dialects.labelling import ROOM, read_fields
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.requests.uploads import DATA_URL, count_images
from service.http.responses import openapi
from service.http.responses.problems import list_headers
from service.http.routes import embed
from service.http.routes.predict import limit_images, write_answer
from service.http.security.keys import PREDICT, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED


def _check_input(value: object) -> str:
    if isinstance(value, str):
        is_text = 0 < len(value) <= MAX_PROMPT_CHARACTERS and not value.lower().startswith("data:")
        if DATA_URL.match(value) or (is_text and is_utf8(value)):
            return value
    raise PydanticCustomError(
        "input",
        f"Should be a text of 1 to {MAX_PROMPT_CHARACTERS} characters, not token ids (LangChain: "
        "check_embedding_ctx_length=False), or an image as data:image/jpeg;base64,...",
    )


_Input = Annotated[str, BeforeValidator(_check_input)]


class EmbeddingsRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    model_config = ConfigDict(extra="forbid")

    input: Annotated[list[_Input], Field(min_length=1), embed.AtMost, embed.AsList] = Field(
        description="Texts, and up to 16 images as `data:image/jpeg;base64,...`."
    )
    model: str | None = Field(default=None, description="The served model or null.")
    encoding_format: embed.Encoding = "float"
    dimensions: int | None = Field(default=None, description="The width of an embedding or null.")
    user: str | None = Field(default=None, description="Ignored.")


def render_error(error: ServiceError, _request_id: str | None) -> JSONResponse:
    """Returns the answer to an error."""
    headers = list_headers(error)
    # OpenAI's clients repeat 409 and all 5xx twice, a request past its deadline too.
    headers["X-Should-Retry"] = str("Retry-After" in headers).lower()
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    described = {
        "message": error.describe(),
        "type": "server_error" if is_ours else "invalid_request_error",
        "code": error.code,
        "param": error.field,
    }
    return JSONResponse({"error": described}, error.status, headers)


_document = partial(openapi.document_problems, members=["error"])

router = APIRouter(prefix="/v1", tags=["dialects"])
_GUARDS = (*PREDICT, LIMITED, KNOWN_NAMES)


@router.get("/models", responses=_document(*ROUTE_PROBLEMS), dependencies=_GUARDS)
async def list_models(served: Served) -> dict[str, Any]:
    """Lists the served model, in the shape of OpenAI's API."""
    name = served.pipeline.bundle.card.name
    model = {"id": name, "object": "model", "created": 0, "owned_by": "ml-decoder"}
    return {"object": "list", "data": [model]}


@router.post(
    "/embeddings",
    responses=openapi.document_answer("In the shape of OpenAI's API.", JSON)
    | _document(*embed.PROBLEMS, errors.ImageError, errors.UnknownModel, errors.OtherWidth),
    openapi_extra=openapi.document_json(EmbeddingsRequest, example={"input": ["a photo of a dog"]}),
    dependencies=[ROOM, *_GUARDS],
)
async def embed_for_openai(request: Request, served: Served) -> Response:
    """Returns the embeddings of texts and images, as `/embed`, in the order of `input`.

    If an image cannot be used, the request fails. `usage` is 0: tokens are not counted.
    """
    pipeline = served.pipeline
    asked = await read_fields(request, served, EmbeddingsRequest)
    card, width = pipeline.bundle.card, pipeline.engine.width
    if asked.model not in (None, card.name):
        raise errors.UnknownModel("Model", asked.model, card.name)
    images = [value for value in asked.input if DATA_URL.match(value)]
    count_images(images, limit_images(served.settings))
    texts = [value for value in asked.input if not DATA_URL.match(value)]
    if texts and card.has_two_towers and card.open_head is not None:
        width = card.open_head.embedding_space.width
    if asked.dimensions not in (None, width):
        raise errors.OtherWidth(asked.dimensions, width)
    with pipeline.admit():
        work = embed.embed_all(pipeline, images, texts)
        photos, rows = map(iter, await cancel_on_disconnect(request, work))
    embedded = [next(photos if DATA_URL.match(value) else rows) for value in asked.input]
    for number, item in enumerate(embedded, start=1):
        if isinstance(item, ServiceError):
            place = f"Input {number} of {len(embedded)}"
            item.detail = ": ".join(filter(None, (place, item.detail)))
            item.field = f"input.{number - 1}"
            raise item
    items = enumerate(embed.describe_all(embedded, asked.encoding_format))
    data = ({"object": "embedding", "index": index, **item} for index, item in items)
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    answer = {"object": "list", "data": data, "model": card.name, "usage": usage}
    return await write_answer(served, answer)
