"""`/embed` and `/v1/embeddings`: embeddings of photos, and of texts that share their space."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from service import errors
from service.caller import CALLER
from service.errors import ServiceError
from service.fields import MAX_PROMPT_CHARACTERS, is_utf8, validate
from service.http.requests.body import JSON, cancel_on_disconnect
from service.http.requests.json import read_json_object
from service.http.requests.parameters import KNOWN_NAMES, Served
from service.http.requests.uploads import DATA_URL, UploadShape, decode_base64, read_upload
from service.http.responses import openapi
from service.http.responses.problems import OPENAI_PREFIX, describe_problem
from service.http.responses.schemas import ImageFailure, NameAndVersion
from service.http.routes.predict import MAX_BATCH_IMAGES, PHOTO_PROBLEMS, limit_images, write_answer
from service.http.security.keys import PREDICT, ROUTE_PROBLEMS
from service.http.security.rates import LIMITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import write_embedding
from service.scheduling.tasks import run_together

MAX_TEXTS = 2048
_TEXTS_PER_UNIT = 16  # of the rate limit
_FEWER = "Send fewer texts at once (LangChain: chunk_size, LlamaIndex: embed_batch_size)."

_Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PROMPT_CHARACTERS)]


def _check_input(value: object) -> str:
    if not isinstance(value, str):
        hint = "Should be a text, not token ids (LangChain: check_embedding_ctx_length=False)"
        raise PydanticCustomError("tokens", hint)
    is_text = 0 < len(value) <= MAX_PROMPT_CHARACTERS and not value.lower().startswith("data:")
    if DATA_URL.match(value) or (is_text and is_utf8(value)):
        return value
    raise PydanticCustomError(
        "input",
        f"Should be a text of 1 to {MAX_PROMPT_CHARACTERS} characters, or an image as "
        "data:image/jpeg;base64,...",
    )


_Input = Annotated[str, BeforeValidator(_check_input)]
_AtMost = Field(max_length=MAX_TEXTS, fail_fast=True)
_AsList = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_Encoding = Literal["float", "base64"]
_Embedded: TypeAlias = NDArray[np.float32] | ServiceError  # an embedding, or an image's error


class EmbedFields(BaseModel):
    """The fields of `/embed` besides its images."""

    texts: Annotated[list[_Text], _AtMost, _AsList] = Field([], description="Not of all models.")


class OpenAIRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    model_config = ConfigDict(extra="forbid")

    input: Annotated[list[_Input], Field(min_length=1), _AtMost, _AsList] = Field(
        description="Texts, and up to 16 images as `data:image/jpeg;base64,...`."
    )
    model: str | None = Field(default=None, description="The served model or null.")
    encoding_format: _Encoding = "float"
    dimensions: int | None = Field(default=None, description="The width of an embedding or null.")
    user: str | None = Field(default=None, description="Ignored.")


class EmbeddedItem(BaseModel):
    """An embedding of length 1: numbers, or little-endian float32 in base64."""

    embedding: list[float] | str


class EmbedAnswer(BaseModel):
    """Answer of `/embed`; its lists are in the order of the request's."""

    model: NameAndVersion
    encoder: str = Field(description="Fingerprint: compare embeddings of one encoder only.")
    width: int | None = Field(description="Of an embedding; null if there is none.", examples=[640])
    images: list[EmbeddedItem | ImageFailure]
    texts: list[EmbeddedItem]


_SHAPE = UploadShape(MAX_BATCH_IMAGES, batch=True, fields=tuple(EmbedFields.model_fields))
_PROBLEMS = (
    *(*PHOTO_PROBLEMS, errors.BodyError, errors.InvalidLabelSet),
    *(errors.NoSharedSpace, errors.TextNotEncodable),
)
_document = partial(openapi.document_problems, prefix=OPENAI_PREFIX)

router = APIRouter(tags=["predict"], dependencies=[*PREDICT, LIMITED, KNOWN_NAMES])


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    responses=openapi.document_problems(*_PROBLEMS, errors.FieldError),
    openapi_extra=openapi.document_predict(_SHAPE, EmbedFields),
)
async def embed(
    request: Request,
    served: Served,
    encoding: Annotated[_Encoding, Query(description="Of each embedding.")] = "float",
) -> Response:
    """Returns embeddings of length 1, whose dot product is the cosine.

    Those of texts fit the images in models of two towers (CLIP, SigLIP); other models refuse texts.
    If an image cannot be used, its entry has the problem.
    """
    pipeline, settings = served.pipeline, served.settings
    shape = UploadShape(limit_images(settings), batch=True, fields=_SHAPE.fields)
    upload = await read_upload(request, shape, served)
    texts = validate(EmbedFields, upload.fields, "body").texts
    if not (upload.images or texts):
        raise errors.MissingField(shape.image_field)
    with pipeline.admit():
        work = _embed(pipeline, upload.images, texts)
        photos, rows = await cancel_on_disconnect(request, work)
    widths = (len(row) for row in (*photos, *rows) if isinstance(row, np.ndarray))
    answer = {
        "model": NameAndVersion.model_validate(pipeline.bundle.card),
        "encoder": pipeline.bundle.encoder_fingerprint,
        "width": next(widths, None),
        "images": _describe(photos, encoding),
        "texts": _describe(rows, encoding),
    }
    return await write_answer(served, answer)


@router.get(f"{OPENAI_PREFIX}/models", responses=_document(*ROUTE_PROBLEMS))
async def list_models(served: Served) -> dict[str, Any]:
    """Lists the served model, in the shape of OpenAI's API."""
    name = served.pipeline.bundle.card.name
    model = {"id": name, "object": "model", "created": 0, "owned_by": "ml-decoder"}
    return {"object": "list", "data": [model]}


@router.post(
    f"{OPENAI_PREFIX}/embeddings",
    responses=openapi.document_answer("In the shape of OpenAI's API.", JSON)
    | _document(*_PROBLEMS, errors.ImageError, errors.UnknownModel, errors.OtherWidth),
    openapi_extra=openapi.document_json(OpenAIRequest, example={"input": ["a photo of a dog"]}),
)
async def embed_for_openai(request: Request, served: Served) -> Response:
    """Returns the embeddings of texts and images, as `/embed`, in the order of `input`.

    If an image cannot be used, the request fails. `usage` is 0: tokens are not counted.
    """
    pipeline, limit = served.pipeline, limit_images(served.settings)
    body = await read_json_object(request, served)
    asked = validate(OpenAIRequest, {k: v for k, v in body.items() if v is not None}, "body")
    card, width = pipeline.bundle.card, pipeline.engine.width
    if asked.model not in (None, card.name):
        raise errors.UnknownModel("Model", asked.model, card.name)
    images = [value for value in asked.input if DATA_URL.match(value)]
    if len(images) > limit:
        raise errors.TooManyImages(limit)
    CALLER.get().count_photos(len(images))
    texts = [value for value in asked.input if not DATA_URL.match(value)]
    if texts and card.has_two_towers and card.open_head is not None:
        width = card.open_head.embedding_space.width
    if asked.dimensions not in (None, width):
        raise errors.OtherWidth(asked.dimensions, width)
    with pipeline.admit():
        work = _embed(pipeline, images, texts)
        photos, rows = map(iter, await cancel_on_disconnect(request, work))
    embedded = [next(photos if DATA_URL.match(value) else rows) for value in asked.input]
    for number, item in enumerate(embedded, start=1):
        if isinstance(item, ServiceError):
            place = f"Input {number} of {len(embedded)}"
            item.detail = ": ".join(filter(None, (place, item.detail)))
            item.field = f"input.{number - 1}"
            raise item
    items = enumerate(_describe(embedded, asked.encoding_format))
    data = ({"object": "embedding", "index": index, **item} for index, item in items)
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    answer = {"object": "list", "data": data, "model": card.name, "usage": usage}
    return await write_answer(served, answer)


async def _embed(
    pipeline: Pipeline, images: Sequence[bytes | str], texts: Sequence[str]
) -> tuple[list[_Embedded], list[_Embedded]]:
    encoders, deadline = pipeline.catalogue.encoders, pipeline.make_deadline()
    rows: list[_Embedded] = []
    if texts:
        if encoders is None or not pipeline.bundle.card.has_two_towers:
            raise errors.NoSharedSpace
        # The request, or its first photo, has counted one already.
        CALLER.get().charge(math.ceil(len(texts) / _TEXTS_PER_UNIT) - (not images))
        try:
            async with asyncio.timeout_at(deadline):
                rows = [*await encoders.encode_texts(texts)]
        except TimeoutError as error:
            late = errors.DeadlineExceeded("deadline exceeded while encoding texts")
            late.detail = _FEWER
            raise late from error

    async def embed_or_fail(image: bytes | str) -> _Embedded:
        try:
            embedding, _ = await pipeline.embed(decode_base64(image), deadline)
        except (errors.ImageError, errors.MalformedBody) as error:
            return errors.without_frames(error)
        return embedding

    return await run_together(embed_or_fail(image) for image in images), rows


# A generator, so that other threads run between items: the JSON of 2,048 takes 0.2 s.
def _describe(embedded: Sequence[_Embedded], encoding: _Encoding) -> Iterator[dict[str, Any]]:
    return (
        {"error": describe_problem(item)}
        if isinstance(item, ServiceError)
        else {"embedding": write_embedding(item, packed=encoding == "base64")}
        for item in embedded
    )
